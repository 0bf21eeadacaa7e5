/*
 * The promises on time: a wait lasts no longer than it was told to, however the broker stands, and
 * the longest time that can be said is no short one. Where it is about lengths the clock and the
 * sleep are the test's own: nothing is measured.
 */
#include <poll.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "ipc/request/address.h"
#include "shm/blocks/fence.h"
#include "tests/unit/ipc/client_support.h"

static bool armed;       /* ppoll lets time pass instead of sleeping */
static int64_t slept_ns; /* so */

int clock_gettime(clockid_t clock, struct timespec *out) {
    long code = syscall(SYS_clock_gettime, clock, out);
    int64_t now_ns = (int64_t)out->tv_sec * SECOND + out->tv_nsec + slept_ns;
    out->tv_sec = now_ns / SECOND;
    out->tv_nsec = now_ns % SECOND;
    return (int)code;
}

int ppoll(struct pollfd *pollers, nfds_t count, const struct timespec *limit,
          const sigset_t *mask) {
    struct timespec left = limit ? *limit : (struct timespec){.tv_sec = 0};
    if (!armed || !limit)
        return (int)syscall(SYS_ppoll, pollers, count, limit ? &left : NULL, mask, _NSIG / 8);
    slept_ns += (int64_t)limit->tv_sec * SECOND + limit->tv_nsec;
    return 0;
}

static void a_wait_ends_in_time_though_the_broker_stands_still(void **state) {
    (void)state;
    static const int64_t times[] = {1000000, SECOND / 5, SECOND, 100 * SECOND};
    cw_client *client = client_open();
    OK(cw_ping(client));
    cw_array *none; /* the directory is mapped from here on */
    assert_int_equal(cw_get(client, "nobody/puts/it", 0, &none), -ENOENT);
    assert_int_equal(kill(cw_client_broker_pid(client), SIGSTOP), 0);
    for (int i = 0; i < 4; i++) {
        int64_t before_ns = slept_ns;
        armed = true;
        int code = cw_wait(client, "nobody/puts/it", times[i]);
        armed = false;
        assert_int_equal(code, -ETIMEDOUT);
        assert_in_range(slept_ns - before_ns, 0, times[i]);
    }
    assert_int_equal(kill(cw_client_broker_pid(client), SIGCONT), 0);
    /* The broker has forgotten those waits, and nobody takes their answers for others'. */
    cw_array *array = bytes_new(client, 10, 1);
    OK(cw_array_put(array, "nobody/puts/it", 0, NULL, 0));
    OK(cw_wait(client, "nobody/puts/it", -1));
    cw_array_close(array);
    cw_client_unref(client);
}

/* ---- the longest times ---- */

static const int64_t longest[] = {INT64_MAX, INT64_MAX - 1, INT64_MAX / 2 + 1};

struct waiter {
    int (*wait)(struct waiter *self);
    int64_t timeout_ns;
    cw_client *client;
    cw_queue *queue;
    cw_item item;
    cw_pool *pool;
    uint32_t news;
    struct cw_fence *fence;
    _Atomic pid_t task;
    _Atomic bool done;
    int code;
};

static void *waiter_run(void *context) {
    struct waiter *self = context;
    self->task = (pid_t)syscall(SYS_gettid);
    self->code = self->wait(self);
    self->done = true;
    return NULL;
}

static bool sleeps(pid_t task) {
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)task);
    int fd = open(path, O_RDONLY);
    ssize_t count = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
    if (fd >= 0)
        close(fd);
    const char *end = count > 0 ? strrchr(line, ')') : NULL;
    return end && end[2] == 'S';
}

/* A thread that waits for so long, seen asleep; or it is done already, which is the defect. */
static pthread_t waiter_start(struct waiter *self, int (*wait)(struct waiter *),
                              int64_t timeout_ns) {
    pthread_t thread;
    self->wait = wait;
    self->timeout_ns = timeout_ns;
    self->task = 0;
    self->done = false;
    assert_int_equal(pthread_create(&thread, NULL, waiter_run, self), 0);
    for (int seen = 0; seen < 3 && !self->done;
         seen = self->task && sleeps(self->task) ? seen + 1 : 0)
        usleep(1000);
    return thread;
}

static void waiter_end(struct waiter *self, pthread_t thread, int wanted) {
    pthread_join(thread, NULL);
    if (self->code != wanted)
        fail_msg("a wait of %lld ns: %d: %s", (long long)self->timeout_ns, self->code, cw_error());
}

static int wait_name(struct waiter *self) {
    return cw_wait(self->client, "late", self->timeout_ns);
}
static int wait_get(struct waiter *self) {
    return cw_queue_get(self->queue, &self->item, self->timeout_ns);
}
static int wait_put(struct waiter *self) {
    return cw_queue_put(self->queue, "b", 1, NULL, 0, 0, self->timeout_ns);
}
static int wait_done(struct waiter *self) {
    return cw_queue_wait_done(self->queue, self->timeout_ns);
}
static int wait_pool(struct waiter *self) {
    return cw_pool_wait(self->pool, 0, self->news, 0, self->timeout_ns);
}
static int wait_fence(struct waiter *self) {
    return cw_fence_wait(self->fence, 1, self->timeout_ns);
}

static void the_longest_time_at_a_name_is_no_short_one(void **state) {
    (void)state;
    struct waiter waiter = {.client = client_open()};
    cw_array *array = bytes_new(waiter.client, 10, 1);
    for (int i = 0; i < 3; i++) {
        pthread_t thread = waiter_start(&waiter, wait_name, longest[i]);
        OK(cw_array_put(array, "late", CW_REPLACE, NULL, 0));
        waiter_end(&waiter, thread, 0);
        OK(cw_remove(waiter.client, "late"));
    }
    cw_array_close(array);
    cw_client_unref(waiter.client);
}

static void the_longest_time_at_a_queue_is_no_short_one(void **state) {
    (void)state;
    struct waiter waiter = {.client = client_open()};
    cw_array *memory;
    cw_item item = {.data = NULL};
    OK(cw_queue_new(waiter.client, 1, 0, &memory));
    OK(cw_queue_open(memory, &waiter.queue));
    for (int i = 0; i < 3; i++) {
        pthread_t thread = waiter_start(&waiter, wait_get, longest[i]);
        OK(cw_queue_put(waiter.queue, "a", 1, NULL, 0, 0, -1));
        waiter_end(&waiter, thread, 0);
        OK(cw_queue_put(waiter.queue, "a", 1, NULL, 0, 0, -1));
        thread = waiter_start(&waiter, wait_put, longest[i]);
        OK(cw_queue_get(waiter.queue, &item, -1));
        waiter_end(&waiter, thread, 0);
        OK(cw_queue_get(waiter.queue, &item, -1));
        OK(cw_queue_task_done(waiter.queue));
        OK(cw_queue_task_done(waiter.queue));
        thread = waiter_start(&waiter, wait_done, longest[i]);
        OK(cw_queue_task_done(waiter.queue));
        waiter_end(&waiter, thread, 0);
    }
    cw_item_deinit(&item);
    cw_item_deinit(&waiter.item);
    cw_queue_close(waiter.queue);
    cw_array_close(memory);
    cw_client_unref(waiter.client);
}

static void the_longest_time_at_a_pool_and_a_fence_is_no_short_one(void **state) {
    (void)state;
    struct waiter waiter = {.pool = NULL};
    uint64_t bytes = cw_pool_bytes(1, 1, 1);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    OK(cw_pool_new(memory, bytes, 1, 1, 1, &waiter.pool));
    _Alignas(64) static struct cw_fence fence;
    for (int i = 0; i < 3; i++) {
        waiter.news = cw_pool_news(waiter.pool, 0);
        pthread_t thread = waiter_start(&waiter, wait_pool, longest[i]);
        cw_pool_tell(waiter.pool, 0);
        waiter_end(&waiter, thread, 0);
        memset(&fence, 0, sizeof fence);
        waiter.fence = &fence;
        thread = waiter_start(&waiter, wait_fence, longest[i]);
        cw_fence_complete(&fence, 1);
        waiter_end(&waiter, thread, 0);
    }
    cw_pool_delete(waiter.pool);
    munmap(memory, bytes);
}

/* ---- a queue and its broker's death ---- */

static void who_waits_for_a_small_item_needs_no_broker(void **state) {
    (void)state;
    struct waiter waiter = {.client = client_open()};
    cw_array *memory;
    OK(cw_queue_new(waiter.client, 10, 0, &memory));
    OK(cw_queue_open(memory, &waiter.queue));
    pthread_t thread = waiter_start(&waiter, wait_get, -1);
    kill(cw_client_broker_pid(waiter.client), SIGKILL);
    EVENTUALLY(cw_client_check(waiter.client) == -ECONNRESET);
    assert_false(waiter.done);
    OK(cw_queue_put(waiter.queue, "a", 1, NULL, 0, 0, 0));
    waiter_end(&waiter, thread, 0);
    cw_handle handle = {.instance = cw_client_instance(waiter.client), .token = 1};
    assert_int_equal(cw_queue_put(waiter.queue, "a", 1, &handle, 1, 0, 0), -ECONNRESET);
    cw_item_deinit(&waiter.item);
    cw_queue_close(waiter.queue);
    cw_array_close(memory);
    cw_client_unref(waiter.client);
}

/* ---- connecting ---- */

/* With so few descriptors that each step of connecting is the one that finds none. */
static int connect_with_few(void *context) {
    int more = *(int *)context;
    int lowest = fcntl(0, F_DUPFD, 3);
    close(lowest);
    struct rlimit limit = {(rlim_t)(lowest + more), (rlim_t)(lowest + more)};
    CHILD(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    cw_client *client;
    int code = cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client);
    if (code == 0)
        return 1;
    CHILD(code == -EDQUOT);
    CHILD(strstr(cw_error(), "ulimit -n"));
    return 0;
}

static void who_has_no_descriptor_left_is_told_which_limit_to_raise(void **state) {
    (void)state;
    cw_client *client = client_open();
    int verdict = 0, more = 0;
    for (; verdict == 0 && more < 30; more++)
        verdict = in_child(connect_with_few, &more);
    assert_int_equal(verdict, 1); /* at last there were enough */
    assert_in_range(more, 3, 29);
    cw_client_unref(client);
}

static void a_broker_of_another_version_in_the_folder_is_told(void **state) {
    (void)state;
    struct cw_address address;
    char path[2 * PATH_MAX];
    cw_client *client;
    OK(cw_address_find(NULL, &address));
    const char *rest = strchr(address.lock_name, '-');
    rest = rest ? rest + 1 + strcspn(rest + 1, "-.") : "";
    snprintf(path, sizeof path, "%s/cablewayd-v999%s", address.folder, rest);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(cw_connect(NULL, NULL, 0, &client), -EPROTO);
    assert_non_null(strstr(cw_error(), "version 999"));
    close(fd); /* it has ended; what it left is no broker */
    OK(cw_connect(NULL, NULL, 0, &client));
    cw_client_unref(client);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {
        TEST(a_wait_ends_in_time_though_the_broker_stands_still),
        TEST(the_longest_time_at_a_name_is_no_short_one),
        TEST(the_longest_time_at_a_queue_is_no_short_one),
        TEST(the_longest_time_at_a_pool_and_a_fence_is_no_short_one),
        TEST(who_waits_for_a_small_item_needs_no_broker),
        TEST(who_has_no_descriptor_left_is_told_which_limit_to_raise),
        TEST(a_broker_of_another_version_in_the_folder_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

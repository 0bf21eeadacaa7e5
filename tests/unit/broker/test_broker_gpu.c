/*
 * GPU slabs and fences at the broker, which has no CUDA: descriptors are kept, bytes accounted,
 * devices told apart by UUID, and the fences of the dead poisoned.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/blocks/fence.h"
#include "shm/blocks/order.h"
#include "tests/support.h"
#include "tests/unit/raw_client.h"

#define SLAB_BYTES (4u << 20)
#define BLOCKS     16u

static struct raw_mail mail;
static struct raw_broker broker;
/* As with the test double of the driver: any descriptor may then be GPU memory. */
static const char *const with_double[] = {"CABLEWAY_CUDA_DRIVER=double",
                                          "CABLEWAY_MAX_GPU_BYTES=9437184", NULL};

static struct raw_client client_open(void) {
    struct raw_client client;
    assert_int_equal(raw_connect(&broker, &client), 0);
    return client;
}

/* A table with orders behind its blocks. */
static struct cw_segment make_table(uint32_t blocks) {
    struct cw_segment segment;
    assert_int_equal(cw_segment_create("blocks", cw_order_table_bytes(blocks), CW_SEGMENT_BLOCKS, 0,
                                       0, &segment),
                     0);
    struct cw_block_table *table = segment.base;
    table->capacity = blocks;
    table->slab_bytes = SLAB_BYTES;
    return segment;
}

static struct cw_slab_info gpu_slab(uint8_t gpu) {
    return (struct cw_slab_info){.device_kind = CW_DEVICE_CUDA,
                                 .device_uuid = {gpu},
                                 .size_bytes = SLAB_BYTES,
                                 .blocks = BLOCKS};
}

/* Offers a slab whose data are a socket, as the test double has them. */
static int offer(struct raw_client *client, struct cw_slab_info *info, struct cw_segment *table) {
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), 0);
    *table = make_table(info->blocks);
    int fds[2] = {ends[0], table->fd};
    int code = raw_exchange(client, CW_OP_SLAB_ADD, info, sizeof *info, fds, 2, &mail);
    if (code == 0)
        memcpy(info, mail.body, sizeof *info);
    close(ends[0]);
    close(ends[1]);
    return code;
}

static void only_the_drivers_descriptors_are_gpu_memory(void **state) {
    (void)state;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    struct raw_client client = client_open();
    struct cw_segment table;
    struct cw_slab_info info = gpu_slab(1);
    assert_int_equal(offer(&client, &info, &table), -EINVAL);
    assert_non_null(strstr(client.sentence, "driver's descriptor"));
    cw_segment_close(&table);
    assert_int_equal(raw_ping(&client), 0);
    raw_bye(&client);
    raw_broker_remove(&broker);
}

static void a_gpu_slab_has_a_uuid_and_a_host_slab_none(void **state) {
    (void)state;
    assert_true(raw_broker_start(&broker, NULL, with_double));
    struct raw_client client = client_open();
    struct cw_segment table;
    struct cw_slab_info info = gpu_slab(0);
    assert_int_equal(offer(&client, &info, &table), -EINVAL);
    assert_non_null(strstr(client.sentence, "UUID"));
    cw_segment_close(&table);
    info = gpu_slab(1);
    info.device_kind = CW_DEVICE_HOST;
    assert_int_equal(offer(&client, &info, &table), -EINVAL);
    assert_non_null(strstr(client.sentence, "UUID"));
    cw_segment_close(&table);
    raw_bye(&client);
    raw_broker_remove(&broker);
}

static void gpu_bytes_are_accounted_apart_and_limited(void **state) {
    (void)state;
    assert_true(raw_broker_start(&broker, NULL, with_double));
    struct raw_client client = client_open();
    struct cw_segment tables[3];
    for (int i = 0; i < 2; i++) {
        struct cw_slab_info info = gpu_slab(1);
        assert_int_equal(offer(&client, &info, &tables[i]), 0);
    }
    struct cw_slab_info info = gpu_slab(1);
    assert_int_equal(offer(&client, &info, &tables[2]), -EDQUOT);
    assert_non_null(strstr(client.sentence, "max_gpu_bytes allows 9437184"));
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_gpu_bytes) == 2 * SLAB_BYTES));
    uint64_t expected = tables[0].size_bytes + tables[1].size_bytes;
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_bytes) == expected));
    assert_true(RAW_UNTIL(CW_LOAD(M1, &broker.root->clients[0].gpu_bytes, relaxed) ==
                          2 * SLAB_BYTES)); /* rows come after the gauges */
    raw_bye(&client);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_gpu_bytes) == 0));
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_gpu_orphan_bytes), 0);
    for (int i = 0; i < 3; i++)
        cw_segment_close(&tables[i]);
    raw_broker_remove(&broker);
}

static void borrowed_memory_comes_as_a_ticket_and_is_charged_to_nobody(void **state) {
    (void)state;
    assert_true(raw_broker_start(&broker, NULL, with_double));
    struct raw_client client = client_open();
    struct cw_segment table, wrong;
    struct cw_slab_info info = gpu_slab(1);
    info.flags = CW_SLAB_FOREIGN;
    assert_int_equal(offer(&client, &info, &wrong), -EINVAL); /* a socket */
    assert_non_null(strstr(client.sentence, "ticket"));
    table = make_table(BLOCKS);
    int ticket = memfd_create("ticket", MFD_CLOEXEC);
    int fds[2] = {ticket, table.fd};
    assert_int_equal(raw_exchange(&client, CW_OP_SLAB_ADD, &info, sizeof info, fds, 2, &mail), 0);
    memcpy(&info, mail.body, sizeof info);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_bytes) == table.size_bytes));
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_gpu_bytes), 0);
    /* Nobody ever adopts it, and it goes when nobody holds anything of it. */
    raw_lease(&client, 0, info.slab, 0);
    cw_block_carve(((struct cw_block_table *)table.base)->blocks, 0, 4096);
    struct raw_client other = client_open();
    struct cw_slab_request wish = {.slab = info.slab};
    raw_post(&client, CW_OP_SLAB_CLOSE, 0, &wish, sizeof wish);
    assert_int_equal(raw_ping(&client), 0);
    wish = (struct cw_slab_request){
        .device_kind = CW_DEVICE_CUDA, .free_bytes = 64, .device_uuid = {1}};
    assert_int_equal(raw_call(&other, CW_OP_SLAB_ADOPT, &wish, sizeof wish, &mail), -ENOENT);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_gpu_orphan_bytes), 0);
    raw_bye(&client);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_slabs) == 0));
    raw_bye(&other);
    close(ticket);
    cw_segment_close(&table);
    cw_segment_close(&wrong);
    raw_broker_remove(&broker);
}

static void an_orphan_is_adopted_by_who_needs_that_gpu(void **state) {
    (void)state;
    assert_true(raw_broker_start(&broker, NULL, with_double));
    struct raw_client maker = client_open(), client = client_open();
    struct cw_segment table;
    struct cw_slab_info info = gpu_slab(7);
    assert_int_equal(offer(&maker, &info, &table), 0);
    /* A block that is alive and held: the slab stays when its maker goes. */
    raw_lease(&client, 0, info.slab, 0);
    uint64_t gen = cw_block_carve(((struct cw_block_table *)table.base)->blocks, 0, 4096);
    raw_bye(&maker);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_gpu_orphan_bytes) == SLAB_BYTES));
    struct cw_block_ref ref = {.slab = info.slab, .block = 0, .gen = gen};
    struct cw_holders holders;
    assert_int_equal(raw_call(&client, CW_OP_HOLDERS, &ref, sizeof ref, &mail), 0);
    memcpy(&holders, mail.body, sizeof holders);
    assert_int_equal(holders.device_kind, CW_DEVICE_CUDA);
    assert_int_equal(holders.device_uuid[0], 7);
    struct cw_slab_request wish = {
        .device_kind = CW_DEVICE_CUDA, .free_bytes = 4096, .device_uuid = {8}};
    assert_int_equal(raw_call(&client, CW_OP_SLAB_ADOPT, &wish, sizeof wish, &mail), -ENOENT);
    wish.device_uuid[0] = 7;
    assert_int_equal(raw_call(&client, CW_OP_SLAB_ADOPT, &wish, sizeof wish, &mail), 0);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_gpu_orphan_bytes) == 0));
    raw_unlease(&client, 0);
    raw_bye(&client);
    cw_segment_close(&table);
    raw_broker_remove(&broker);
}

static struct cw_segment fences_of(struct raw_client *client, uint16_t op, uint32_t page,
                                   struct cw_fence_page *info) {
    struct cw_segment segment = {.fd = -1};
    struct cw_fence_page request = {.page = page};
    assert_int_equal(raw_exchange(client, op, &request, page ? sizeof request : 0, NULL, 0, &mail),
                     0);
    memcpy(info, mail.body, sizeof *info);
    assert_int_equal(
        cw_segment_open(mail.fds[0], info->size_bytes, CW_SEGMENT_FENCES, true, 0, &segment), 0);
    return segment;
}

static struct cw_fence *first_fence(const struct cw_segment *segment) {
    return (struct cw_fence *)((uint8_t *)segment->base + CW_PAGE);
}

static void the_fences_of_the_dead_are_poisoned_and_forgotten(void **state) {
    (void)state;
    assert_true(raw_broker_start(&broker, NULL, with_double));
    struct raw_client client = client_open();
    struct cw_fence_page info;
    struct cw_segment table;
    struct cw_slab_info slab = gpu_slab(1);
    int told[2];
    uint32_t page;
    assert_int_equal(offer(&client, &slab, &table), 0);
    struct cw_order *order = cw_order_of(table.base, 3);
    assert_int_equal(pipe(told), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct raw_client producer;
        if (raw_connect(&broker, &producer) != 0)
            _exit(1);
        struct cw_segment mine = fences_of(&producer, CW_OP_FENCES_ADD, 0, &info);
        cw_fence_complete(first_fence(&mine), 5);
        if (write(told[1], &info.page, sizeof info.page) != sizeof info.page)
            _exit(1);
        pause();
        _exit(0);
    }
    assert_int_equal(read(told[0], &page, sizeof page), sizeof page);
    assert_true(page > 0);
    struct cw_segment seen = fences_of(&client, CW_OP_FENCES_OPEN, page, &info);
    assert_int_equal(info.page, page);
    assert_int_equal(cw_fence_poll(first_fence(&seen), 5), 1);
    assert_int_equal(cw_fence_poll(first_fence(&seen), 6), 0);
    uint32_t number = page * CW_FENCES_PER_PAGE;
    CW_STORE(G10, &order->write, cw_stamp_make(number, 6), relaxed);
    CW_STORE(G10, &order->reads[2], cw_stamp_make(number, 5), relaxed);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_true(RAW_UNTIL(cw_fence_poll(first_fence(&seen), 6) == -EOWNERDEAD));
    assert_int_equal(cw_fence_poll(first_fence(&seen), 5), 1); /* what was complete stays good */
    /* Then its stamps go, and the page. */
    assert_true(RAW_UNTIL(CW_LOAD(G11, &order->write, acquire) == CW_STAMP_DEAD));
    assert_true(RAW_UNTIL(CW_LOAD(G11, &order->reads[2], acquire) == 0));
    struct cw_fence_page request = {.page = page};
    assert_true(RAW_UNTIL(raw_exchange(&client, CW_OP_FENCES_OPEN, &request, sizeof request, NULL,
                                       0, &mail) == -ENOENT));
    cw_segment_close(&seen);
    cw_segment_close(&table);
    raw_bye(&client);
    raw_broker_remove(&broker);
}

/* The broker's own time from the death of somebody with so many pages until it has forgotten them.
 * *longest_ns: how long another client waited for an answer meanwhile. */
static int64_t death_takes_ns(struct raw_client *client, uint32_t pages, int64_t *longest_ns) {
    struct cw_fence_page info = {.page = 0};
    int told[2];
    assert_int_equal(pipe(told), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct raw_client producer;
        if (raw_connect(&broker, &producer) != 0)
            _exit(1);
        for (uint32_t i = 0; i < pages; i++)
            fences_of(&producer, CW_OP_FENCES_ADD, 0, &info);
        if (write(told[1], &info.page, sizeof info.page) != sizeof info.page)
            _exit(1);
        pause();
        _exit(0);
    }
    struct cw_fence_page last = {.page = 0};
    assert_int_equal(read(told[0], &last.page, sizeof last.page), sizeof last.page);
    int64_t before_ns = raw_broker_ran_ns(&broker);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    *longest_ns = 0;
    for (int status = 0; status != -ENOENT; usleep(1000)) {
        int64_t asked_ns = cw_now_ns();
        status = raw_exchange(client, CW_OP_FENCES_OPEN, &last, sizeof last, NULL, 0, &mail);
        int64_t took_ns = cw_now_ns() - asked_ns;
        *longest_ns = took_ns > *longest_ns ? took_ns : *longest_ns;
        if (status == 0)
            close(mail.fds[0]);
    }
    close(told[0]);
    close(told[1]);
    return raw_broker_ran_ns(&broker) - before_ns;
}

/* A pass over all orders a page was 9 to 21 ms a page: 32 workers that end together held everybody
 * up for half a second. */
static void pages_that_end_together_are_settled_together(void **state) {
    (void)state;
    enum { ORDERS = 1u << 18, PAGES = 64 };
    assert_true(raw_broker_start(&broker, NULL, with_double));
    struct raw_client client = client_open();
    struct cw_segment table;
    struct cw_slab_info slab = gpu_slab(1);
    slab.blocks = ORDERS;
    assert_int_equal(offer(&client, &slab, &table), 0);
    int64_t longest_ns;
    death_takes_ns(&client, 1, &longest_ns); /* the table's memory has been touched then */
    int64_t one_ns = death_takes_ns(&client, 1, &longest_ns);
    int64_t many_ns = death_takes_ns(&client, PAGES, &longest_ns);
    print_message("# one page %lld us, %d pages %lld us, an answer %lld us\n",
                  (long long)one_ns / 1000, PAGES, (long long)many_ns / 1000,
                  (long long)longest_ns / 1000);
    assert_in_range(many_ns, 0, 8 * one_ns);
    cw_segment_close(&table);
    raw_bye(&client);
    raw_broker_remove(&broker);
}

static void the_fences_of_a_broken_context_are_poisoned_while_its_process_lives(void **state) {
    (void)state;
    assert_true(raw_broker_start(&broker, NULL, with_double));
    struct raw_client client = client_open(), producer = client_open();
    struct cw_fence_page broken, whole, info;
    struct cw_segment table;
    struct cw_slab_info slab = gpu_slab(1);
    assert_int_equal(offer(&client, &slab, &table), 0);
    struct cw_order *order = cw_order_of(table.base, 3);
    struct cw_segment one = fences_of(&producer, CW_OP_FENCES_ADD, 0, &broken);
    struct cw_segment two = fences_of(&producer, CW_OP_FENCES_ADD, 0, &whole);
    cw_fence_complete(first_fence(&one), 5);
    cw_fence_complete(first_fence(&two), 5);
    CW_STORE(G10, &order->write, cw_stamp_make(broken.page * CW_FENCES_PER_PAGE, 6), relaxed);
    CW_STORE(G10, &order->reads[2], cw_stamp_make(whole.page * CW_FENCES_PER_PAGE, 6), relaxed);
    /* Not by another's word, and a page that is not there is no breach. */
    assert_int_equal(raw_post(&client, CW_OP_FENCES_BREAK, 0, &broken, sizeof broken), 0);
    struct cw_fence_page none = {.page = whole.page + 1};
    assert_int_equal(raw_post(&client, CW_OP_FENCES_BREAK, 0, &none, sizeof none), 0);
    assert_int_equal(raw_ping(&client), 0);
    assert_int_equal(cw_fence_poll(first_fence(&one), 6), 0);
    assert_int_equal(raw_post(&producer, CW_OP_FENCES_BREAK, 0, &broken, sizeof broken), 0);
    assert_int_equal(raw_ping(&producer), 0);
    assert_int_equal(cw_fence_poll(first_fence(&one), 6), -EOWNERDEAD);
    assert_int_equal(cw_fence_poll(first_fence(&one), 5), 1); /* what was complete stays good */
    CW_STORE(F2, &first_fence(&one)->value, 6, relaxed);      /* a late write */
    assert_int_equal(cw_fence_poll(first_fence(&one), 6), -EOWNERDEAD);
    assert_false(cw_fence_is_final(first_fence(&one)));
    assert_true(RAW_UNTIL(CW_LOAD(G11, &order->write, acquire) == CW_STAMP_DEAD));
    assert_true(cw_fence_is_final(first_fence(&one)));
    assert_int_equal(cw_fence_poll(first_fence(&two), 6), 0); /* its other GPU goes on */
    assert_int_equal(CW_LOAD(G11, &order->reads[2], acquire),
                     cw_stamp_make(whole.page * CW_FENCES_PER_PAGE, 6));
    struct cw_fence_page request = {.page = broken.page};
    assert_int_equal(
        raw_exchange(&client, CW_OP_FENCES_OPEN, &request, sizeof request, NULL, 0, &mail),
        -ENOENT);
    struct cw_segment seen = fences_of(&client, CW_OP_FENCES_OPEN, whole.page, &info);
    raw_bye(&producer); /* the end finds what is left */
    assert_true(RAW_UNTIL(cw_fence_poll(first_fence(&two), 6) == -EOWNERDEAD));
    cw_segment_close(&seen);
    cw_segment_close(&one);
    cw_segment_close(&two);
    cw_segment_close(&table);
    raw_bye(&client);
    raw_broker_remove(&broker);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_drivers_descriptors_are_gpu_memory),
        cmocka_unit_test(a_gpu_slab_has_a_uuid_and_a_host_slab_none),
        cmocka_unit_test(gpu_bytes_are_accounted_apart_and_limited),
        cmocka_unit_test(borrowed_memory_comes_as_a_ticket_and_is_charged_to_nobody),
        cmocka_unit_test(an_orphan_is_adopted_by_who_needs_that_gpu),
        cmocka_unit_test(the_fences_of_the_dead_are_poisoned_and_forgotten),
        cmocka_unit_test(pages_that_end_together_are_settled_together),
        cmocka_unit_test(the_fences_of_a_broken_context_are_poisoned_while_its_process_lives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * The promises of shm/base/segment.h: whole, sealed, recognised; nothing taken on trust from a
 * descriptor.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "shm/base/error.h"
#include "shm/base/segment.h"
#include "tests/support.h"

static int fd_count(void) {
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static struct cw_segment make(uint64_t size_bytes, unsigned flags) {
    struct cw_segment segment;
    assert_int_equal(cw_segment_create("test", size_bytes, CW_SEGMENT_SESSION, 42, flags, &segment),
                     0);
    return segment;
}

static void a_segment_is_whole_zeroed_and_says_what_it_is(void **state) {
    (void)state;
    struct cw_segment segment = make(10000, 0);
    assert_int_equal(segment.size_bytes, 12288); /* rounded up to a page */
    struct stat status;
    assert_int_equal(fstat(segment.fd, &status), 0);
    assert_int_equal(status.st_size, 12288);
    assert_int_equal(status.st_blocks * 512, 12288); /* every page is there */
    const struct cw_segment_header *header = segment.base;
    assert_int_equal(header->magic, CW_SEGMENT_MAGIC);
    assert_int_equal(header->version, CW_SEGMENT_VERSION);
    assert_int_equal(header->kind, CW_SEGMENT_SESSION);
    assert_int_equal(header->size_bytes, 12288);
    assert_int_equal(header->instance, 42);
    for (size_t i = sizeof *header; i < segment.size_bytes; i++)
        assert_int_equal(((uint8_t *)segment.base)[i], 0);
    assert_int_equal(fcntl(segment.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    cw_segment_close(&segment);
}

static void its_label_is_seen_in_proc(void **state) {
    (void)state;
    struct cw_segment segment = make(4096, 0);
    char path[64], target[128] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", segment.fd);
    assert_true(readlink(path, target, sizeof target - 1) > 0);
    assert_non_null(strstr(target, "cw-test"));
    cw_segment_close(&segment);
}

static void its_size_is_sealed(void **state) {
    (void)state;
    struct cw_segment segment = make(8192, 0);
    assert_int_equal(ftruncate(segment.fd, 4096), -1);
    assert_int_equal(ftruncate(segment.fd, 65536), -1);
    assert_int_equal(fcntl(segment.fd, F_ADD_SEALS, F_SEAL_WRITE), -1); /* and so are the seals */
    cw_segment_close(&segment);
}

static void readers_of_a_readers_only_segment_cannot_map_it_writable(void **state) {
    (void)state;
    struct cw_segment segment = make(4096, CW_SEGMENT_READERS_ONLY);
    ((uint8_t *)segment.base)[100] = 7; /* its maker writes on */
    struct cw_segment reader;
    assert_int_equal(cw_segment_open(dup(segment.fd), 4096, CW_SEGMENT_SESSION, true, 0, &reader),
                     -EPERM);
    assert_int_equal(cw_segment_open(dup(segment.fd), 4096, CW_SEGMENT_SESSION, false, 0, &reader),
                     0);
    assert_int_equal(((uint8_t *)reader.base)[100], 7);
    assert_int_equal(mprotect(reader.base, 4096, PROT_READ | PROT_WRITE), -1);
    assert_int_equal(write(segment.fd, "x", 1), -1);
    cw_segment_close(&reader);
    cw_segment_close(&segment);
}

static void raw_memory_has_no_header_and_unmapped_no_mapping(void **state) {
    (void)state;
    struct cw_segment raw = make(4096, CW_SEGMENT_RAW);
    for (size_t i = 0; i < 4096; i++)
        assert_int_equal(((uint8_t *)raw.base)[i], 0);
    struct cw_segment seen;
    assert_int_equal(cw_segment_open(dup(raw.fd), 4096, 0, true, CW_SEGMENT_RAW, &seen), 0);
    cw_segment_close(&seen);
    assert_int_equal(cw_segment_open(dup(raw.fd), 4096, CW_SEGMENT_SESSION, true, 0, &seen),
                     -EPROTO);
    cw_segment_close(&raw);
    struct cw_segment unmapped = make(4096, CW_SEGMENT_UNMAPPED);
    assert_null(unmapped.base);
    assert_true(unmapped.fd >= 0);
    cw_segment_close(&unmapped);
}

static void a_size_that_cannot_be_is_refused(void **state) {
    (void)state;
    struct cw_segment segment;
    assert_int_equal(cw_segment_create("test", 0, 1, 0, 0, &segment), -EINVAL);
    assert_int_equal(cw_segment_create("test", UINT64_MAX, 1, 0, 0, &segment), -EINVAL);
    assert_int_equal(cw_segment_create("test", INT64_MAX, 1, 0, 0, &segment), -EINVAL);
    assert_int_equal(cw_segment_create("test", 1ull << 50, 1, 0, 0, &segment), -EDQUOT);
}

/* What a stranger may hand over in place of a segment. */
static int stranger(int which) {
    int fds[2];
    switch (which) {
    case 0:
        return open("/dev/null", O_RDWR);
    case 1:
        return open("/", O_RDONLY | O_DIRECTORY);
    case 2:
        assert_int_equal(pipe(fds), 0);
        close(fds[1]);
        return fds[0];
    case 3:
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
        close(fds[1]);
        return fds[0];
    case 4:
        return open("/proc/self/exe", O_RDONLY);
    case 5: /* not sealed */
        fds[0] = memfd_create("unsealed", MFD_ALLOW_SEALING);
        assert_int_equal(ftruncate(fds[0], 8192), 0);
        return fds[0];
    case 6: /* sealed against growing alone */
        fds[0] = memfd_create("growth", MFD_ALLOW_SEALING);
        assert_int_equal(ftruncate(fds[0], 8192), 0);
        assert_int_equal(fcntl(fds[0], F_ADD_SEALS, F_SEAL_GROW), 0);
        return fds[0];
    case 7: /* shorter than announced */
        fds[0] = memfd_create("short", MFD_ALLOW_SEALING);
        assert_int_equal(ftruncate(fds[0], 8191), 0);
        assert_int_equal(fcntl(fds[0], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
        return fds[0];
    default:
        return -1;
    }
}

static void what_is_not_sealed_memory_of_that_size_is_refused_and_closed(void **state) {
    (void)state;
    for (int which = 0; which < 9; which++) {
        int before = fd_count();
        struct cw_segment segment = {.fd = 1234};
        int fd = stranger(which);
        assert_int_equal(cw_segment_open(fd, 8192, CW_SEGMENT_SESSION, true, 0, &segment), -EPROTO);
        assert_int_equal(segment.fd, 1234); /* outputs are set on success alone */
        assert_int_equal(fd_count(), before);
        assert_true(strlen(cw_detail()) > 0);
    }
}

static void a_size_that_lies_is_refused(void **state) {
    (void)state;
    struct cw_segment segment = make(8192, 0), seen;
    const uint64_t lies[] = {0, 4096, 12288, 1ull << 40, UINT64_MAX, UINT64_MAX - 8191};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
        assert_int_equal(
            cw_segment_open(dup(segment.fd), lies[i], CW_SEGMENT_SESSION, true, 0, &seen), -EPROTO);
    cw_segment_close(&segment);
}

static void a_wrong_header_is_refused(void **state) {
    (void)state;
    struct cw_segment segment = make(8192, 0), seen;
    struct cw_segment_header *header = segment.base, right = *header;
    for (int field = 0; field < 5; field++) {
        *header = right;
        header->magic += field == 0;
        header->version += field == 1;
        header->kind += field == 2;
        header->size_bytes -= field == 3 ? 4096 : 0;
        int kind = field == 4 ? CW_SEGMENT_ROOT : CW_SEGMENT_SESSION;
        int before = fd_count();
        assert_int_equal(cw_segment_open(dup(segment.fd), 8192, kind, true, 0, &seen), -EPROTO);
        assert_int_equal(fd_count(), before);
    }
    *header = right;
    assert_int_equal(cw_segment_open(dup(segment.fd), 8192, CW_SEGMENT_SESSION, true, 0, &seen), 0);
    cw_segment_close(&seen);
    cw_segment_close(&segment);
}

static void a_hole_punched_later_reads_as_zero_and_never_faults(void **state) {
    (void)state;
    struct cw_segment segment = make(8192, 0);
    memset((uint8_t *)segment.base + 4096, 9, 4096);
    assert_int_equal(fallocate(segment.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096),
                     0);
    assert_int_equal(((volatile uint8_t *)segment.base)[5000], 0);
    cw_segment_close(&segment);
}

static void closing_can_be_repeated_and_the_mapping_outlives_the_fd(void **state) {
    (void)state;
    int before = fd_count();
    struct cw_segment segment = make(4096, 0);
    cw_segment_close_fd(&segment);
    cw_segment_close_fd(&segment);
    assert_int_equal(segment.fd, -1);
    assert_int_equal(fd_count(), before);
    assert_int_equal(((struct cw_segment_header *)segment.base)->magic, CW_SEGMENT_MAGIC);
    cw_segment_close(&segment);
    cw_segment_close(&segment);
    assert_null(segment.base);
    struct cw_segment never = {.fd = -1};
    cw_segment_close(&never);
}

static void a_segment_outlives_its_maker(void **state) {
    (void)state;
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
    fflush(NULL);
    pid_t pid = fork();
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    char byte = 0;
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    if (pid == 0) {
        struct cw_segment segment;
        if (cw_segment_create("test", 4096, CW_SEGMENT_SESSION, 1, 0, &segment))
            _exit(1);
        strcpy((char *)segment.base + 64, "left behind");
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &segment.fd, sizeof(int));
        sendmsg(fds[1], &message, 0);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(recvmsg(fds[0], &message, MSG_CMSG_CLOEXEC), 1);
    waitpid(pid, NULL, 0);
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    struct cw_segment segment;
    assert_int_equal(cw_segment_open(fd, 4096, CW_SEGMENT_SESSION, true, 0, &segment), 0);
    assert_string_equal((char *)segment.base + 64, "left behind");
    cw_segment_close(&segment);
    close(fds[0]);
    close(fds[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_segment_is_whole_zeroed_and_says_what_it_is),
        cmocka_unit_test(its_label_is_seen_in_proc),
        cmocka_unit_test(its_size_is_sealed),
        cmocka_unit_test(readers_of_a_readers_only_segment_cannot_map_it_writable),
        cmocka_unit_test(raw_memory_has_no_header_and_unmapped_no_mapping),
        cmocka_unit_test(a_size_that_cannot_be_is_refused),
        cmocka_unit_test(what_is_not_sealed_memory_of_that_size_is_refused_and_closed),
        cmocka_unit_test(a_size_that_lies_is_refused),
        cmocka_unit_test(a_wrong_header_is_refused),
        cmocka_unit_test(a_hole_punched_later_reads_as_zero_and_never_faults),
        cmocka_unit_test(closing_can_be_repeated_and_the_mapping_outlives_the_fd),
        cmocka_unit_test(a_segment_outlives_its_maker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

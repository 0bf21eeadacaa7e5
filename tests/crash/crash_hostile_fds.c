/*
 * Hostile clients, in what they hand in: descriptors of other kinds in every place where one is
 * expected, more of them than allowed, and files of a file system whose answers never come (FUSE).
 * The broker looks at them only in ways that cannot block; a neighbour goes on, and every
 * descriptor is closed again.
 */
/* LDLIBS: -lfuse3 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "tests/crash/support/fuse_blocking.h"
#include "tests/crash/support/hostile.h"

static struct raw_client client;

static bool come(void) {
    return raw_connect(&hostile_broker, &client) == 0;
}

static int memory(uint64_t size_bytes, int seals) {
    int fd = memfd_create("stranger", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    if (ftruncate(fd, (off_t)size_bytes) != 0 || (seals && fcntl(fd, F_ADD_SEALS, seals) != 0))
        return -1;
    return fd;
}

#define KINDS 13

/* Every kind of descriptor that is none of ours. The other ends stay open in this process. */
static int stranger(int kind) {
    int pair[2];
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    switch (kind) {
    case 0:
        return pipe(pair) ? -1 : pair[0];
    case 1:
        return pipe(pair) ? -1 : pair[1];
    case 2:
        return socketpair(AF_UNIX, SOCK_STREAM, 0, pair) ? -1 : pair[0];
    case 3:
        return open("/", O_RDONLY | O_DIRECTORY);
    case 4:
        return open("/dev/null", O_RDWR);
    case 5:
        return open("/proc/self/exe", O_RDONLY);
    case 6:
        return open("/proc/self/exe", O_PATH);
    case 7:
        return eventfd(0, 0);
    case 8:
        return epoll_create1(0);
    case 9:
        return raw_pidfd(getppid());
    case 10:
        return memory(1, 0);
    case 11: /* a listening socket: passing it makes cycles possible */
        pair[0] = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        if (bind(pair[0], (struct sockaddr *)&name, sizeof name.sun_family) || listen(pair[0], 1))
            return -1;
        return pair[0];
    default:
        return dup(client.sock); /* our own connection to the broker */
    }
}

static struct cw_slab_info info_of(uint64_t size_bytes, uint32_t blocks) {
    return (struct cw_slab_info){
        .device_kind = CW_DEVICE_HOST, .size_bytes = size_bytes, .blocks = blocks};
}

static int slabs_of_other_kinds(void) {
    static struct raw_mail mail;
    for (int kind = 0; kind < KINDS; kind++)
        for (int place = 0; place < 3; place++) { /* as data, as table, as both */
            struct raw_slab slab;
            ACT(come());
            raw_slab_make(8192, 16, &slab);
            int fd = stranger(kind);
            ACT(fd >= 0);
            int fds[2] = {place == 1 ? slab.data.fd : fd, place == 0 ? slab.table_segment.fd : fd};
            struct cw_slab_info info = info_of(8192, 16);
            int status = raw_exchange(&client, CW_OP_SLAB_ADD, &info, sizeof info, fds, 2, &mail);
            if (status >= 0)
                printf("# kind %d was taken in place %d\n", kind, place);
            ACT(status < 0);
            raw_mail_close(&mail);
            raw_slab_close(&slab);
            close(fd);
            raw_bye(&client);
        }
    return 0;
}

static int fork_pipes_of_other_kinds(void) {
    static struct raw_mail mail;
    for (int kind = 1; kind < KINDS; kind++) {
        ACT(come());
        int fd = stranger(kind);
        ACT(fd >= 0);
        int status = raw_exchange(&client, CW_OP_FORK, NULL, 0, &fd, 1, &mail);
        ACT(status < 0); /* also a pipe's write end: the broker would hold the pipe open itself */
        raw_mail_close(&mail);
        close(fd);
        raw_bye(&client);
    }
    return 0;
}

static int pidfds_of_other_kinds(void) {
    static struct raw_mail mail;
    client.sock = -1;
    for (int kind = 0; kind < KINDS; kind++) {
        int sock = raw_dial(&hostile_broker);
        ACT(sock >= 0);
        client.sock = sock;
        int fd = stranger(kind);
        ACT(raw_say_hello(sock, CW_PROTOCOL_VERSION, CW_PROTOCOL_VERSION, fd) == 0);
        ACT(raw_receive(sock, &mail, RAW_TIMEOUT_MS) == 1 && mail.head.status < 0);
        ACT(raw_receive(sock, &mail, RAW_TIMEOUT_MS) == 0);
        close(fd);
        close(sock);
    }
    return 0;
}

/* A table that is not sealed, too small, of another kind, or whose header is another's. */
static int tables_that_are_none(void) {
    static struct raw_mail mail;
    for (int what = 0; what < 6; what++) {
        struct raw_slab slab;
        ACT(come());
        raw_slab_make(8192, 16, &slab);
        struct cw_segment other = {.fd = -1};
        int table = slab.table_segment.fd;
        struct cw_segment_header *header = slab.table_segment.base;
        struct cw_slab_info info = info_of(8192, 16);
        switch (what) {
        case 0:
            table = memory(8192, 0);
            break;
        case 1:
            table = memory(4096, F_SEAL_SHRINK | F_SEAL_GROW);
            break;
        case 2:
            header->magic++;
            break;
        case 3:
            header->kind = CW_SEGMENT_ROOT;
            break;
        case 4:
            slab.table->capacity = 1 << 20;
            break;
        case 5:
            info.blocks = 1 << 20; /* more than the table has room for */
            slab.table->capacity = 1 << 20;
            break;
        }
        int fds[2] = {slab.data.fd, table};
        ACT(raw_exchange(&client, CW_OP_SLAB_ADD, &info, sizeof info, fds, 2, &mail) < 0);
        raw_mail_close(&mail);
        cw_segment_close(&other);
        raw_slab_close(&slab);
        raw_bye(&client);
    }
    return 0;
}

/* Data that could shrink under its readers, or is shorter than it is said to be. */
static int data_that_could_vanish(void) {
    static struct raw_mail mail;
    for (int what = 0; what < 4; what++) {
        struct raw_slab slab;
        ACT(come());
        raw_slab_make(8192, 16, &slab);
        int data = what == 0   ? memory(8192, 0)
                   : what == 1 ? memory(8192, F_SEAL_GROW)
                   : what == 2 ? memory(4096, F_SEAL_GROW | F_SEAL_SHRINK)
                               : memory(0, F_SEAL_GROW | F_SEAL_SHRINK);
        int fds[2] = {data, slab.table_segment.fd};
        struct cw_slab_info info = info_of(8192, 16);
        ACT(raw_exchange(&client, CW_OP_SLAB_ADD, &info, sizeof info, fds, 2, &mail) < 0);
        raw_mail_close(&mail);
        close(data);
        raw_slab_close(&slab);
        raw_bye(&client);
    }
    return 0;
}

/* One datagram with so many descriptors. */
static int send_many(const struct cw_message *head, const int *fds, uint32_t count) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * 253)];
    } control = {.bytes = {0}};
    struct iovec part = {(void *)(uintptr_t)head, sizeof *head};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE(sizeof(int) * count)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int) * count);
    memcpy(CMSG_DATA(rights), fds, sizeof(int) * count);
    return sendmsg(client.sock, &message, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static int more_descriptors_than_allowed(void) {
    static const uint16_t ops[] = {CW_OP_SLAB_ADD,    CW_OP_SLAB_OPEN, CW_OP_FORK,
                                   CW_OP_LEASE_TABLE, CW_OP_PING,      999};
    int fds[253];
    for (int i = 0; i < 253; i++)
        ACT((fds[i] = open("/dev/null", O_RDWR)) >= 0);
    for (size_t op = 0; op < sizeof ops / sizeof *ops; op++)
        for (uint32_t count = 1; count <= 253; count = count * 3 + 2) {
            struct cw_message head = {.size_bytes = sizeof head, .op = ops[op], .id = 1};
            struct raw_mail mail;
            ACT(come());
            ACT(send_many(&head, fds, count) == 0);
            if (raw_receive(client.sock, &mail, RAW_TIMEOUT_MS) == 1) {
                /* A lease table needs none: a few more are closed and forgiven. */
                ACT(mail.head.status < 0 || (ops[op] == CW_OP_LEASE_TABLE && count <= 4));
                raw_mail_close(&mail);
            }
            raw_bye(&client);
        }
    return 0;
}

static int too_many_registered_descriptors(void) {
    ACT(come());
    struct raw_slab slab;
    int status = 0, made = 0;
    for (; made < 2000 && status == 0; made++) {
        status = raw_slab_add(&client, 4096, 1, &slab);
        if (status == 0)
            raw_slab_close(&slab);
    }
    ACT(status == -EDQUOT && made > 10);
    return 0;
}

/* ---- a file system that does not answer ---- */

/* Each place in turn gets a file whose fstat and close block for ever. */
static int files_that_block(void) {
    static struct raw_mail mail;
    for (int place = 0; place < 5; place++) {
        struct raw_slab slab;
        int file = fuse_open_blocking();
        ACT(file >= 0);
        ACT(come());
        raw_slab_make(8192, 16, &slab);
        struct cw_slab_info info = info_of(8192, 16);
        int fds[4] = {file, slab.table_segment.fd, file, file};
        if (place == 1) {
            fds[0] = slab.data.fd;
            fds[1] = file;
        }
        int status = -1, sock;
        switch (place) {
        case 0:
        case 1:
            status = raw_exchange(&client, CW_OP_SLAB_ADD, &info, sizeof info, fds, 2, &mail);
            break;
        case 2:
            status = raw_exchange(&client, CW_OP_FORK, NULL, 0, fds, 1, &mail);
            break;
        case 3:
            sock = raw_dial(&hostile_broker);
            ACT(raw_say_hello(sock, CW_PROTOCOL_VERSION, CW_PROTOCOL_VERSION, file) == 0);
            ACT(raw_receive(sock, &mail, RAW_TIMEOUT_MS) == 1);
            status = mail.head.status;
            close(sock);
            break;
        default: /* as GPU memory, which the broker cannot look into */
            info.device_kind = CW_DEVICE_CUDA;
            status = raw_exchange(&client, CW_OP_SLAB_ADD, &info, sizeof info, fds, 2, &mail);
        }
        ACT(status < 0);
        raw_mail_close(&mail);
        raw_slab_close(&slab);
        raw_bye(&client);
        /* Our own close of it would block as well: the process's end does it, once FUSE ends. */
    }
    return 0;
}

static void a_file_that_blocks_stops_nobody(void **state) {
    (void)state;
    char reason[200];
    if (!fuse_start(hostile_world.folder, reason, sizeof reason)) {
        print_message("skipped: %s\n", reason);
        skip();
    }
    pid_t pid = fork();
    if (pid == 0)
        _exit(files_that_block());
    int status = 0;
    for (int i = 0; i < 3000 && waitpid(pid, &status, WNOHANG) == 0; i++) {
        int alive = neighbour_ask(&hostile_neighbour, NEIGHBOUR_LIVE);
        if (alive)
            fuse_stop();
        assert_int_equal(alive, 0);
        /* The act itself is through when its process waits for the file system: by then the
         * broker answered all of it. */
        if (i == 500)
            fuse_release();
        world_pause();
    }
    bool blocked = fuse_blocked() > 0;
    fuse_stop();
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    print_message("# %d calls of the file system were held back\n", (int)fuse_blocked());
    assert_true(blocked);
    assert_int_equal(neighbour_ask(&hostile_neighbour, NEIGHBOUR_LIVE), 0);
}

static void test(void **state) {
    hostile_run((int (*)(void))(uintptr_t)*state, 30000);
}

#define HOSTILE(act)                                                                               \
    { #act, test, NULL, NULL, (void *)(uintptr_t)(act) }

static int set_up(void **state) {
    setenv("CABLEWAY_MAX_CLIENT_SLABS", "200", 1);
    return hostile_set_up(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        HOSTILE(slabs_of_other_kinds),
        HOSTILE(fork_pipes_of_other_kinds),
        HOSTILE(pidfds_of_other_kinds),
        HOSTILE(tables_that_are_none),
        HOSTILE(data_that_could_vanish),
        HOSTILE(more_descriptors_than_allowed),
        HOSTILE(too_many_registered_descriptors),
        cmocka_unit_test(a_file_that_blocks_stops_nobody),
    };
    return cmocka_run_group_tests(tests, set_up, hostile_tear_down);
}

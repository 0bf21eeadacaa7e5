/*
 * Liar: see liar.h.
 */
#include "tests/crash/support/liar.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "shm/base/error.h"
#include "tests/support.h"

#define SLABS      3
#define BLOCKS     32
#define SLAB_BYTES (256u << 10)
#define NAMES      10

static struct liar_board *the_board;
static struct chance chance;
static struct raw_client client;
static struct raw_mail mail;
static struct raw_slab slabs[SLABS];
static struct cw_segment further[4]; /* lease tables and fences */
static uint64_t asked[8];            /* ids that may be cancelled */
static unsigned liar;                /* of 100 words */

static uint64_t below(uint64_t n) {
    return chance_below(&chance, n);
}

static void tell(uint64_t word) {
    atomic_store(&the_board->words[below(64)], word);
}

static uint64_t word_of_somebody(void) {
    return atomic_load(&the_board->words[below(64)]);
}

/* A word that means something, or the edge of something. */
static uint64_t odd_word(uint64_t was) {
    switch (below(12)) {
    case 0:
        return 0;
    case 1:
        return UINT64_MAX;
    case 2:
        return UINT64_MAX >> (1 + below(63));
    case 3:
        return 1ull << below(64);
    case 4:
        return was + 1;
    case 5:
        return was - 1;
    case 6:
        return was ^ 1ull << below(64);
    case 7:
        return chance_next(&chance);
    case 8:
        return cw_lease_slot((uint32_t)word_of_somebody(), (uint32_t)below(BLOCKS));
    case 9:
        return (below(4) << CW_BLOCK_GEN_SHIFT) | below(8);
    default:
        return word_of_somebody();
    }
}

/* Changes words of a body, now and then. */
static void twist(void *bytes, uint32_t size_bytes) {
    while (below(100) < liar && size_bytes >= 4) {
        atomic_fetch_add(&the_board->lies, 1);
        uint32_t at = (uint32_t)below(size_bytes / 4) * 4,
                 width = below(2) && at + 8 <= size_bytes ? 8 : 4;
        uint64_t word = 0;
        memcpy(&word, (uint8_t *)bytes + at, width);
        word = odd_word(word);
        memcpy((uint8_t *)bytes + at, &word, width);
    }
}

/* Replies that came, without waiting: half of all clients read them, so that the others' fill the
 * ring. */
static void read_replies(void) {
    uint32_t type, length;
    const void *payload;
    while (cw_ring_peek(&client.replies, &type, &payload, &length) == 1) {
        if (length >= sizeof(struct cw_message)) {
            struct cw_message head;
            memcpy(&head, payload, sizeof head);
            atomic_fetch_add(head.status < 0 ? &the_board->refused : &the_board->done, 1);
        }
        cw_ring_consume(&client.replies);
    }
}

/* text_bytes: at the end of the body, which name() has made odd enough. */
static void post_with(uint16_t op, void *body, uint32_t body_bytes, uint32_t text_bytes) {
    uint8_t record[CW_MESSAGE_MAX + 64];
    struct cw_message head = {
        .size_bytes = (uint32_t)sizeof head + body_bytes, .op = op, .id = ++client.next_id};
    uint32_t type = op, length = head.size_bytes;
    asked[below(8)] = head.id;
    twist(body, body_bytes - text_bytes);
    if (below(400) < liar)
        twist(&head, sizeof head);
    if (below(400) < liar)
        type = (uint32_t)odd_word(type);
    if (below(400) < liar)
        length = (uint32_t)below(sizeof record);
    if (type == CW_RING_PADDING) /* no ring of ours writes that as a record; scribble() may */
        type--;
    memcpy(record, &head, sizeof head);
    memcpy(record + sizeof head, body, body_bytes);
    atomic_fetch_add(&the_board->requests, 1);
    for (int i = 0; i < 50 && cw_ring_write(&client.requests, type, record, length) != 0; i++)
        raw_pause();
    if (below(20))
        raw_ring(&client);
}

static void post(uint16_t op, void *body, uint32_t body_bytes) {
    post_with(op, body, body_bytes, 0);
}

/* Descriptors of every kind. Closed by the end of the process. */
static int any_fd(void) {
    static int kinds[12];
    static bool made;
    if (!made) {
        made = true;
        int pair[2];
        CW_ASSERT(pipe2(pair, O_CLOEXEC | O_NONBLOCK) == 0);
        kinds[0] = pair[0], kinds[1] = pair[1];
        CW_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
        kinds[2] = pair[0], kinds[3] = pair[1];
        kinds[4] = open("/dev/null", O_RDWR | O_CLOEXEC);
        kinds[5] = open("/", O_PATH | O_CLOEXEC);
        kinds[6] = memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        kinds[7] = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        CW_ASSERT(ftruncate(kinds[7], SLAB_BYTES) == 0);
        kinds[8] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        kinds[9] = epoll_create1(EPOLL_CLOEXEC);
        kinds[10] = raw_pidfd(getppid());
        kinds[11] = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    return kinds[below(12)];
}

/* One request over the socket. The reply is read in most cases; true: it is in mail. */
static bool exchange(uint16_t op, void *body, uint32_t body_bytes, const int *fds,
                     uint32_t fd_count) {
    struct {
        struct cw_message head;
        uint8_t body[512];
    } message = {.head = {.size_bytes = (uint32_t)sizeof message.head + body_bytes,
                          .op = op,
                          .id = ++client.next_id}};
    int passed[RAW_FDS_MAX + 4];
    for (uint32_t i = 0; i < fd_count; i++)
        passed[i] = below(300) < liar ? any_fd() : fds[i];
    while (below(300) < liar && fd_count < RAW_FDS_MAX + 4)
        passed[fd_count++] = any_fd();
    if (below(300) < liar)
        fd_count /= 2;
    twist(body, body_bytes);
    memcpy(message.body, body, body_bytes);
    if (below(400) < liar)
        twist(&message.head, sizeof message.head);
    size_t size_bytes =
        below(400) < liar ? below(sizeof message) : sizeof message.head + body_bytes;
    atomic_fetch_add(&the_board->requests, 1);
    if (raw_send(client.sock, &message, size_bytes, passed, fd_count) != 0 || below(400) < liar)
        return false;
    if (raw_receive(client.sock, &mail, LIAR_LIFE_MS) != 1)
        return false;
    atomic_fetch_add(mail.head.status < 0 ? &the_board->refused : &the_board->done, 1);
    if (mail.head.status == 0)
        return true;
    raw_mail_close(&mail);
    return false;
}

static void keep(int fd, uint64_t size_bytes, uint32_t kind) {
    struct cw_segment *one = &further[below(4)];
    cw_segment_close(one);
    if (cw_segment_open(fd, size_bytes, kind, true, 0, one) != 0)
        *one = (struct cw_segment){.fd = -1};
}

/* Writes an odd word into something that this client shares with the broker. */
static void scribble(void) {
    struct cw_segment *among[2 + SLABS + 4] = {&client.session_segment, &client.session_segment};
    for (int i = 0; i < SLABS; i++)
        among[2 + i] = &slabs[i].table_segment;
    for (int i = 0; i < 4; i++)
        among[2 + SLABS + i] = &further[i];
    uint64_t which = below(2 + SLABS + 4);
    struct cw_segment *segment = among[which];
    if (!segment->base)
        return;
    static const uint32_t starts[] = {0, CW_SESSION_REQUESTS, CW_SESSION_REPLIES,
                                      CW_SESSION_LEASES};
    uint64_t start = which < 2 ? starts[below(4)] : 0;
    uint64_t span = below(8) ? 512 : segment->size_bytes - start;
    cw_a64 *word = (cw_a64 *)(void *)((uint8_t *)segment->base + start) + below(span / 8);
    atomic_store(word, odd_word(atomic_load(word)));
    atomic_fetch_add(&the_board->lies, 1);
}

/* A key. All begin as no name of the neighbour's does, see sweep(). */
static uint32_t name(uint8_t *to) {
    static const char *const odd[] = {"/",    "//b",      "..",           "a//b",
                                      "\x01", "\xff\xfe", "\xed\xa0\x80", "a/./b"};
    to[0] = 0; /* the empty namespace */
    uint32_t length = 1 + (uint32_t)sprintf((char *)to + 1, "nonsense/%d", (int)below(NAMES));
    if (below(100) < liar)
        length += (uint32_t)sprintf((char *)to + length, "%s", odd[below(8)]);
    if (below(300) < liar)
        while (length < CW_KEY_MAX)
            to[length++] = 'x';
    return length;
}

static struct raw_slab *slab(void) {
    return &slabs[below(SLABS)];
}

/* A block of one's own, or of somebody, and its generation. */
static struct cw_block_ref block(void) {
    struct raw_slab *mine = slab();
    struct cw_block_ref ref = {.token = (uint64_t)client.session << 32 | below(8)};
    ref.block = (uint32_t)below(BLOCKS);
    ref.slab = below(4) || !mine->table ? (uint32_t)word_of_somebody() : mine->id;
    if (mine->table && ref.slab == mine->id)
        ref.gen = cw_block_gen(atomic_load(&mine->table->blocks[ref.block].word));
    else
        ref.gen = below(4);
    return ref;
}

static void put(void) {
    struct {
        struct cw_put put;
        uint8_t text[CW_KEY_MAX + 64];
    } body = {.put = {.flags = (uint32_t)below(4)}};
    struct cw_block_ref ref = block();
    struct raw_slab *mine = slab();
    if (mine->table && below(4)) {
        ref.slab = mine->id;
        struct cw_block *entry = &mine->table->blocks[ref.block];
        ref.gen = cw_block_state(atomic_load(&entry->word)) == CW_BLOCK_FREE
                      ? raw_carve(&client, mine, ref.block, ref.block * 4096ull, 4096)
                      : cw_block_gen(atomic_load(&entry->word));
    }
    body.put.slab = ref.slab, body.put.block = ref.block, body.put.gen = ref.gen;
    body.put.size_bytes = 4096;
    body.put.key_bytes = (uint16_t)name(body.text);
    body.put.meta_bytes = (uint16_t)below(40);
    memset(body.text + body.put.key_bytes, 1, body.put.meta_bytes);
    tell(ref.slab);
    post_with(CW_OP_PUT, &body,
              (uint32_t)sizeof body.put + body.put.key_bytes + body.put.meta_bytes,
              body.put.key_bytes + body.put.meta_bytes);
    if (mine->table && below(2))
        raw_unlease(&client, ref.block);
}

static void ask_by_name(uint16_t op) {
    struct {
        struct cw_key key;
        uint8_t text[CW_KEY_MAX];
    } body = {0};
    body.key.key_bytes = name(body.text);
    post_with(op, &body, (uint32_t)sizeof body.key + body.key.key_bytes, body.key.key_bytes);
}

static void add_slab(void) {
    struct raw_slab *mine = slab();
    raw_slab_close(mine);
    raw_slab_make(SLAB_BYTES, BLOCKS, mine);
    struct cw_slab_info info = {
        .device_kind = CW_DEVICE_HOST, .size_bytes = SLAB_BYTES, .blocks = BLOCKS};
    int fds[2] = {mine->data.fd, mine->table_segment.fd};
    if (exchange(CW_OP_SLAB_ADD, &info, sizeof info, fds, 2)) {
        memcpy(&info, mail.body, sizeof info);
        mine->id = info.slab;
        tell(mine->id);
    }
}

static void open_something(void) {
    struct cw_slab_request slab_request = {.slab = (uint32_t)word_of_somebody()};
    struct cw_segment_request segment = {.kind = (uint32_t)(2 + below(3)), .which = below(4)};
    struct cw_fence_page page = {.page = (uint32_t)below(12)};
    switch (below(5)) {
    case 0:
        exchange(CW_OP_SLAB_OPEN, &slab_request, sizeof slab_request, NULL, 0);
        break;
    case 1:
        exchange(CW_OP_SEGMENT_OPEN, &segment, sizeof segment, NULL, 0);
        break;
    case 2:
        exchange(CW_OP_FENCES_OPEN, &page, sizeof page, NULL, 0);
        break;
    case 3:
        if (exchange(CW_OP_LEASE_TABLE, NULL, 0, NULL, 0)) {
            struct cw_segment_reply reply;
            memcpy(&reply, mail.body, sizeof reply);
            keep(mail.fds[0], reply.size_bytes, CW_SEGMENT_LEASES);
            mail.fd_count = 0;
        }
        break;
    default:
        if (exchange(CW_OP_FENCES_ADD, NULL, 0, NULL, 0)) {
            memcpy(&page, mail.body, sizeof page);
            keep(mail.fds[0], page.size_bytes, CW_SEGMENT_FENCES);
            mail.fd_count = 0;
        }
    }
    raw_mail_close(&mail);
}

static void fork_leases(void) {
    int pair[2];
    CW_ASSERT(pipe2(pair, O_CLOEXEC) == 0);
    exchange(CW_OP_FORK, NULL, 0, pair, 1);
    close(pair[0]);
    if (below(2))
        close(pair[1]);
}

static void ask_for_a_job(void) {
    struct cw_block_ref from = block(), to = block();
    struct cw_copy copy = {.source = {from.slab, from.block, from.gen, 0},
                           .target = {to.slab, to.block, to.gen, 0},
                           .size_bytes = 64};
    struct {
        struct cw_remote remote;
        uint8_t text[64];
    } remote = {.remote = {.verb = (uint32_t)below(CW_REMOTE_VERBS + 1)}};
    struct cw_job_end end = {.job = below(100)};
    struct cw_link link = {.route = CW_LINK_PEER};
    struct cw_changes changes = {.seen = below(100), .news = (uint32_t)below(2)};
    switch (below(liar ? 7 : 2)) { /* what only mover and bridge may say is a breach */
    case 0:
        post(CW_OP_COPY, &copy, sizeof copy);
        break;
    case 1:
        remote.remote.key_bytes =
            (uint16_t)(1 + sprintf((char *)remote.text + 1, "//b/x%d", (int)below(4)));
        post(CW_OP_REMOTE, &remote, (uint32_t)sizeof remote.remote + remote.remote.key_bytes);
        break;
    case 2:
        post((uint16_t)(below(2) ? CW_OP_MOVER_NEXT : CW_OP_REMOTE_NEXT), NULL, 0);
        break;
    case 3:
        post((uint16_t)(below(2) ? CW_OP_MOVER_DONE : CW_OP_REMOTE_DONE), &end, sizeof end);
        break;
    case 4:
        post((uint16_t)(below(2) ? CW_OP_LINK : CW_OP_LINK_KEEP), &link, sizeof link);
        break;
    case 5:
        post(CW_OP_CHANGES, &changes, sizeof changes);
        break;
    default:
        if (below(100) < liar) /* any op with anything: not STOP, which is obeyed */
            post((uint16_t)(CW_OP_STOP + 1 + below(30)), &copy, (uint32_t)below(sizeof copy));
    }
}

static void step(void) {
    struct cw_block_ref ref = block();
    struct cw_slab_request request = {
        .slab = ref.slab, .device_kind = CW_DEVICE_HOST, .free_bytes = below(3) << 12};
    struct cw_cancel cancel = {.id = asked[below(8)]};
    struct cw_fence_page page = {.page = (uint32_t)below(12)};
    switch (below(20)) {
    case 0:
        add_slab();
        break;
    case 1:
    case 2:
    case 3:
        put();
        break;
    case 4:
        ask_by_name(CW_OP_REMOVE);
        break;
    case 5:
    case 6:
        ask_by_name(CW_OP_WAIT);
        break;
    case 7:
        post(CW_OP_CANCEL, &cancel, sizeof cancel);
        break;
    case 8:
        if (below(2)) {
            struct cw_transit_share share = {.ref = ref, .openers = (uint32_t)below(4)};
            post(CW_OP_TRANSIT_SHARE, &share, sizeof share);
        } else {
            post(CW_OP_TRANSIT_BEGIN, &ref, sizeof ref);
        }
        break;
    case 9:
        post((uint16_t)(below(2)   ? CW_OP_TRANSIT_END
                        : below(2) ? CW_OP_TRANSIT_OPENED
                                   : CW_OP_TRANSIT_ANCHOR),
             &ref, sizeof ref);
        break;
    case 10:
        raw_lease(&client, (uint32_t)below(CW_LEASE_TABLE_SLOTS), ref.slab, ref.block);
        break;
    case 11:
        post(CW_OP_DROP, &ref, sizeof ref);
        break;
    case 12:
        post((uint16_t)(below(2) ? CW_OP_SLAB_CLOSE : CW_OP_SLAB_ADOPT), &request, sizeof request);
        break;
    case 13:
        post(CW_OP_HOLDERS, &ref, sizeof ref);
        break;
    case 14:
        if (below(3))
            post(CW_OP_PING, NULL, 0);
        else
            post(CW_OP_FENCES_BREAK, &page, sizeof page);
        break;
    case 15:
        open_something();
        break;
    case 16:
        fork_leases();
        break;
    case 17:
        ask_for_a_job();
        break;
    default:
        if (below(100) < liar)
            scribble();
    }
}

_Noreturn void liar_live(const struct raw_broker *broker, struct liar_board *board,
                         uint64_t number) {
    the_board = board;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    faults_end_us(); /* a lie may hit ourselves */
    chance = chance_init(number);
    for (int i = 0; i < SLABS; i++)
        slabs[i] = (struct raw_slab){.data = {.fd = -1}, .table_segment = {.fd = -1}};
    for (int i = 0; i < 4; i++)
        further[i] = (struct cw_segment){.fd = -1};
    static const unsigned liars[] = {0, 1, 3, 20};
    liar = liars[below(4)];
    bool reads = below(2);
    if (raw_connect(broker, &client) != 0)
        _exit(0);
    tell(client.session);
    add_slab();
    uint64_t steps = 1 + below(400);
    for (uint64_t i = 0; i < steps; i++) {
        step();
        if (reads)
            read_replies();
    }
    switch (below(5)) {
    case 0:
        raw_bye(&client);
        break;
    case 1:
        raw_close(&client); /* without a word, and the process goes on */
        raise(SIGSTOP);
        break;
    case 2:
        raise(SIGSTOP);
        break;
    default:
        break;
    }
    _exit(0);
}

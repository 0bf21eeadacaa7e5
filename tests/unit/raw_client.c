/*
 * Raw client: see raw_client.h. One thread a client. What dies with it is what the tests want to
 * see.
 */
#include "tests/unit/raw_client.h"

#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shm/base/error.h"

void raw_pause(void) {
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

int raw_pidfd(pid_t pid) {
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

int raw_dial(const struct raw_broker *broker) {
    struct sockaddr_un name;
    socklen_t length;
    int folder, sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0 || cw_address_open_folder(&broker->address, false, &folder) != 0)
        return -1;
    cw_address_sockaddr(&broker->address, folder, &name, &length);
    int result = connect(sock, (struct sockaddr *)&name, length);
    close(folder);
    if (result == 0)
        return sock;
    close(sock);
    return -1;
}

int raw_send(int sock, const void *bytes, size_t size_bytes, const int *fds, uint32_t fd_count) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * 64)];
    } control;
    struct iovec part = {(void *)(uintptr_t)bytes, size_bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd_count) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(rights), fds, sizeof(int) * fd_count);
    }
    return sendmsg(sock, &message, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

void raw_mail_close(struct raw_mail *mail) {
    for (uint32_t i = 0; i < mail->fd_count; i++)
        close(mail->fds[i]);
    mail->fd_count = 0;
}

int raw_receive(int sock, struct raw_mail *mail, int timeout_ms) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * RAW_FDS_MAX)];
    } control;
    struct iovec parts[2] = {{&mail->head, sizeof mail->head}, {mail->body, sizeof mail->body}};
    struct msghdr message = {.msg_iov = parts,
                             .msg_iovlen = 2,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct pollfd poller = {.fd = sock, .events = POLLIN};
    mail->fd_count = 0;
    if (poll(&poller, 1, timeout_ms) == 0)
        return -ETIMEDOUT;
    ssize_t count = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
    if (count <= 0)
        return count == 0 || errno == ECONNRESET ? 0 : -errno;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
            mail->fd_count = (uint32_t)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(mail->fds, CMSG_DATA(part), mail->fd_count * sizeof(int));
        }
    if ((size_t)count < sizeof mail->head || mail->head.size_bytes != (uint32_t)count) {
        raw_mail_close(mail);
        return -EPROTO;
    }
    mail->body_bytes = (uint32_t)count - (uint32_t)sizeof mail->head;
    return 1;
}

int raw_say_hello(int sock, uint32_t version_min, uint32_t version_max, int pidfd) {
    struct {
        struct cw_message head;
        struct cw_hello hello;
    } message = {.head = {.size_bytes = sizeof message, .op = CW_OP_HELLO, .id = 1},
                 .hello = {.magic = CW_HELLO_MAGIC,
                           .version_min = version_min,
                           .version_max = version_max,
                           .comm = "raw"}};
    return raw_send(sock, &message, sizeof message, &pidfd, pidfd >= 0);
}

static void keep_sentence(struct raw_client *client, const struct raw_mail *mail) {
    if (mail->head.status >= 0)
        return;
    memcpy(client->sentence, mail->body, mail->body_bytes);
    client->sentence[mail->body_bytes < sizeof client->sentence ? mail->body_bytes : 0] = 0;
}

static int open_session(struct raw_client *client, struct raw_mail *mail) {
    struct cw_hello_reply reply;
    if (mail->head.op != (CW_OP_HELLO | CW_OP_REPLY) || mail->body_bytes != sizeof reply ||
        mail->fd_count != 6)
        return -EPROTO;
    memcpy(&reply, mail->body, sizeof reply);
    client->session = reply.session;
    client->instance = reply.instance;
    client->doorbell = mail->fds[2];
    client->bell = mail->fds[3];
    close(mail->fds[4]); /* the directory's; who looks for names asks for them */
    close(mail->fds[5]);
    mail->fd_count = 0;
    int code = cw_segment_open(mail->fds[0], reply.root_bytes, CW_SEGMENT_ROOT, false, 0,
                               &client->root_segment);
    int second = cw_segment_open(mail->fds[1], reply.session_bytes, CW_SEGMENT_SESSION, true, 0,
                                 &client->session_segment);
    if (code || second)
        return code ? code : second;
    void *base = client->session_segment.base;
    client->root = client->root_segment.base;
    client->shared = base;
    CW_STORE(S3, &client->shared->mapped, 1, relaxed);
    client->leases = cw_session_leases(base);
    cw_ring_producer_init(&client->requests, cw_session_requests(base), CW_CHANNEL_BYTES);
    cw_ring_consumer_init(&client->replies, cw_session_replies(base), CW_CHANNEL_BYTES);
    return 0;
}

int raw_connect(const struct raw_broker *broker, struct raw_client *client) {
    static _Thread_local struct raw_mail mail;
    *client = (struct raw_client){.sock = -1,
                                  .doorbell = -1,
                                  .bell = -1,
                                  .root_segment = {.fd = -1},
                                  .session_segment = {.fd = -1},
                                  .next_id = 100};
    client->sock = raw_dial(broker);
    if (client->sock < 0)
        return -ECONNREFUSED;
    int pidfd = raw_pidfd(getpid());
    int code = raw_say_hello(client->sock, CW_PROTOCOL_VERSION, CW_PROTOCOL_VERSION, pidfd);
    close(pidfd);
    if (code == 0)
        code =
            raw_receive(client->sock, &mail, RAW_TIMEOUT_MS) == 1 ? mail.head.status : -ECONNRESET;
    if (code == 0)
        code = open_session(client, &mail);
    else if (code != -ECONNRESET)
        keep_sentence(client, &mail);
    if (code)
        raw_close(client);
    return code;
}

static void close_fd(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void raw_close(struct raw_client *client) {
    close_fd(&client->sock);
    close_fd(&client->doorbell);
    close_fd(&client->bell);
    cw_segment_close(&client->root_segment);
    cw_segment_close(&client->session_segment);
}

void raw_bye(struct raw_client *client) {
    raw_post(client, CW_OP_BYE, 0, NULL, 0);
    raw_close(client);
}

void raw_ring(struct raw_client *client) {
    uint64_t one = 1;
    /* W2: the root is read-only here, so it is only looked at. */
    if (CW_LOAD(W2, &client->root->broker.asleep, seq_cst) &&
        write(client->doorbell, &one, sizeof one) < 0)
        return; /* full: it rings already */
}

int raw_post(struct raw_client *client, uint16_t op, uint64_t id, const void *body,
             uint32_t body_bytes) {
    uint8_t *place;
    struct cw_message head = {.size_bytes = (uint32_t)sizeof head + body_bytes, .op = op, .id = id};
    if (!RAW_UNTIL(cw_ring_reserve(&client->requests, head.size_bytes, (void **)&place) == 0))
        return -ETIMEDOUT;
    memcpy(place, &head, sizeof head);
    if (body_bytes)
        memcpy(place + sizeof head, body, body_bytes);
    cw_ring_commit(&client->requests, op, head.size_bytes);
    raw_ring(client);
    return 0;
}

/* Takes one reply out of the ring: 1, or 0 when there is none. */
static int take_reply(struct raw_client *client, struct raw_mail *mail) {
    uint32_t type, length;
    const void *payload;
    if (cw_ring_peek(&client->replies, &type, &payload, &length) != 1)
        return 0;
    memcpy(&mail->head, payload, sizeof mail->head);
    mail->body_bytes = length - (uint32_t)sizeof mail->head;
    mail->fd_count = 0;
    memcpy(mail->body, (const uint8_t *)payload + sizeof mail->head, mail->body_bytes);
    cw_ring_consume(&client->replies);
    if (cw_sleeper_claim(&client->replies.ring->producer))
        raw_ring(client);
    keep_sentence(client, mail);
    return 1;
}

int raw_reply(struct raw_client *client, struct raw_mail *mail, int timeout_ms) {
    int64_t end_ns = cw_now_ns() + timeout_ms * 1000000ll;
    uint8_t words[64];
    for (;;) {
        if (take_reply(client, mail))
            return 1;
        cw_sleeper_announce(&client->replies.ring->consumer);
        if (cw_ring_has_record(&client->replies))
            continue;
        int64_t left_ns = end_ns - cw_now_ns();
        if (left_ns <= 0)
            return -ETIMEDOUT;
        struct pollfd pollers[2] = {{.fd = client->bell, .events = POLLIN},
                                    {.fd = client->sock, .events = POLLRDHUP}};
        poll(pollers, 2, (int)(left_ns / 1000000) + 1);
        if (pollers[0].revents & POLLIN && read(client->bell, words, sizeof words) < 0)
            continue;
        if (pollers[1].revents)
            return take_reply(client, mail);
    }
}

int raw_call(struct raw_client *client, uint16_t op, const void *body, uint32_t body_bytes,
             struct raw_mail *mail) {
    uint64_t id = ++client->next_id;
    int code = raw_post(client, op, id, body, body_bytes);
    while (code == 0) {
        int got = raw_reply(client, mail, RAW_TIMEOUT_MS);
        if (got != 1)
            return got == 0 ? -ECONNRESET : got;
        if (mail->head.id == id)
            return mail->head.status;
    }
    return code;
}

int raw_exchange(struct raw_client *client, uint16_t op, const void *body, uint32_t body_bytes,
                 const int *fds, uint32_t fd_count, struct raw_mail *mail) {
    struct {
        struct cw_message head;
        uint8_t body[512];
    } message = {.head = {.size_bytes = (uint32_t)sizeof message.head + body_bytes,
                          .op = op,
                          .id = ++client->next_id}};
    CW_ASSERT(body_bytes <= sizeof message.body);
    if (body_bytes)
        memcpy(message.body, body, body_bytes);
    int code = raw_send(client->sock, &message, message.head.size_bytes, fds, fd_count);
    if (code)
        return code == -EPIPE ? -ECONNRESET : code;
    int got = raw_receive(client->sock, mail, RAW_TIMEOUT_MS);
    if (got != 1)
        return got == 0 ? -ECONNRESET : got;
    keep_sentence(client, mail);
    return mail->head.id == message.head.id ? mail->head.status : -EBADMSG;
}

bool raw_dropped(struct raw_client *client) {
    static _Thread_local struct raw_mail mail;
    for (;;) {
        int got = raw_receive(client->sock, &mail, RAW_TIMEOUT_MS);
        if (got != 1)
            return got == 0;
        keep_sentence(client, &mail);
        raw_mail_close(&mail);
    }
}

/* ---- what clients do ---- */

void raw_slab_make(uint64_t size_bytes, uint32_t blocks, struct raw_slab *out) {
    *out = (struct raw_slab){.data = {.fd = -1}, .table_segment = {.fd = -1}};
    if (cw_segment_create("data", size_bytes, 0, 0, CW_SEGMENT_UNMAPPED | CW_SEGMENT_RAW,
                          &out->data) != 0 ||
        cw_segment_create("blocks", cw_block_table_bytes(blocks), CW_SEGMENT_BLOCKS, 0, 0,
                          &out->table_segment) != 0)
        cw_assert_failed(cw_detail(), __FILE__, __LINE__);
    out->table = out->table_segment.base;
    out->table->capacity = blocks;
    out->table->slab_bytes = size_bytes;
}

int raw_slab_add(struct raw_client *client, uint64_t size_bytes, uint32_t blocks,
                 struct raw_slab *out) {
    static _Thread_local struct raw_mail mail;
    struct cw_slab_info info = {
        .device_kind = CW_DEVICE_HOST, .size_bytes = size_bytes, .blocks = blocks};
    raw_slab_make(size_bytes, blocks, out);
    int fds[2] = {out->data.fd, out->table_segment.fd};
    int code = raw_exchange(client, CW_OP_SLAB_ADD, &info, sizeof info, fds, 2, &mail);
    if (code) {
        raw_slab_close(out);
        return code;
    }
    memcpy(&info, mail.body, sizeof info);
    out->id = info.slab;
    return info.owner_session == client->session ? 0 : -EBADMSG;
}

int raw_slab_open(struct raw_client *client, uint32_t id, struct raw_slab *out) {
    static _Thread_local struct raw_mail mail;
    struct cw_slab_request request = {.slab = id};
    struct cw_slab_info info;
    int code = raw_exchange(client, CW_OP_SLAB_OPEN, &request, sizeof request, NULL, 0, &mail);
    if (code)
        return code;
    memcpy(&info, mail.body, sizeof info);
    *out = (struct raw_slab){.id = id, .data = {.fd = mail.fds[0]}, .table_segment = {.fd = -1}};
    code = cw_segment_open(mail.fds[1], cw_block_table_bytes(info.blocks), CW_SEGMENT_BLOCKS, true,
                           0, &out->table_segment);
    out->table = out->table_segment.base;
    return code;
}

void raw_slab_close(struct raw_slab *slab) {
    cw_segment_close(&slab->data);
    cw_segment_close(&slab->table_segment);
    slab->table = NULL;
}

bool raw_is_free(const struct raw_slab *slab, uint32_t block) {
    return cw_block_state(CW_LOAD(B10, &slab->table->blocks[block].word, seq_cst)) == CW_BLOCK_FREE;
}

void raw_lease(struct raw_client *client, uint32_t slot, uint32_t slab, uint32_t block) {
    cw_lease_take(client->leases, slot, slab, block);
}

void raw_unlease(struct raw_client *client, uint32_t slot) {
    cw_lease_drop(client->leases, slot);
}

uint64_t raw_carve(struct raw_client *client, struct raw_slab *slab, uint32_t block,
                   uint64_t offset_bytes, uint64_t length_bytes) {
    raw_lease(client, block, slab->id, block);
    return cw_block_carve(&slab->table->blocks[block], offset_bytes, length_bytes);
}

int raw_put(struct raw_client *client, uint32_t slab, uint32_t block, uint64_t gen,
            uint64_t size_bytes, const char *name, uint32_t flags) {
    return raw_put_meta(client, slab, block, gen, size_bytes, name, flags, "meta", 4);
}

int raw_put_meta(struct raw_client *client, uint32_t slab, uint32_t block, uint64_t gen,
                 uint64_t size_bytes, const char *name, uint32_t flags, const void *meta,
                 size_t meta_bytes) {
    static _Thread_local struct raw_mail mail;
    uint8_t body[sizeof(struct cw_put) + CW_KEY_MAX + CW_META_MAX];
    size_t length = strlen(name);
    struct cw_put put = {.slab = slab,
                         .block = block,
                         .gen = gen,
                         .size_bytes = size_bytes,
                         .flags = flags,
                         .key_bytes = (uint16_t)(length + 1),
                         .meta_bytes = (uint16_t)meta_bytes};
    CW_ASSERT(length < CW_KEY_MAX && meta_bytes <= CW_META_MAX);
    memcpy(body, &put, sizeof put);
    body[sizeof put] = 0; /* the empty namespace, and the NUL behind it */
    memcpy(body + sizeof put + 1, name, length);
    memcpy(body + sizeof put + 1 + length, meta, meta_bytes);
    return raw_call(client, CW_OP_PUT, body, (uint32_t)(sizeof put + 1 + length + meta_bytes),
                    &mail);
}

uint32_t raw_key(const char *name, uint8_t *body) {
    struct cw_key key = {.key_bytes = (uint32_t)strlen(name) + 1};
    memcpy(body, &key, sizeof key);
    body[sizeof key] = 0;
    memcpy(body + sizeof key + 1, name, strlen(name));
    return (uint32_t)sizeof key + key.key_bytes;
}

int raw_remove(struct raw_client *client, const char *name) {
    static _Thread_local struct raw_mail mail;
    uint8_t body[sizeof(struct cw_key) + CW_KEY_MAX];
    uint32_t length = raw_key(name, body);
    return raw_call(client, CW_OP_REMOVE, body, length, &mail);
}

uint64_t raw_wait(struct raw_client *client, const char *name) {
    uint8_t body[sizeof(struct cw_key) + CW_KEY_MAX];
    uint32_t length = raw_key(name, body);
    uint64_t id = ++client->next_id;
    raw_post(client, CW_OP_WAIT, id, body, length);
    return id;
}

uint64_t raw_transit_begin(struct raw_client *client, uint32_t slab, uint32_t block, uint64_t gen) {
    struct cw_block_ref ref = {.token = (uint64_t)client->session << 32 | ++client->tokens,
                               .slab = slab,
                               .block = block,
                               .gen = gen};
    raw_post(client, CW_OP_TRANSIT_BEGIN, 0, &ref, sizeof ref);
    return ref.token;
}

uint64_t raw_transit_share(struct raw_client *client, uint32_t slab, uint32_t block, uint64_t gen,
                           uint32_t openers) {
    struct cw_transit_share share = {
        .ref = {.token = (uint64_t)client->session << 32 | ++client->tokens,
                .slab = slab,
                .block = block,
                .gen = gen},
        .openers = openers};
    raw_post(client, CW_OP_TRANSIT_SHARE, 0, &share, sizeof share);
    return share.ref.token;
}

void raw_transit_opened(struct raw_client *client, uint64_t token) {
    struct cw_block_ref ref = {.token = token};
    raw_post(client, CW_OP_TRANSIT_OPENED, 0, &ref, sizeof ref);
}

void raw_transit_end(struct raw_client *client, uint64_t token) {
    raw_transit_end_of(client, token, 0, 0, 0);
}

void raw_transit_end_of(struct raw_client *client, uint64_t token, uint32_t slab, uint32_t block,
                        uint64_t gen) {
    struct cw_block_ref ref = {.token = token, .slab = slab, .block = block, .gen = gen};
    raw_post(client, CW_OP_TRANSIT_END, 0, &ref, sizeof ref);
}

void raw_drop(struct raw_client *client, uint32_t slab, uint32_t block, uint64_t gen) {
    struct cw_block_ref ref = {.slab = slab, .block = block, .gen = gen};
    raw_post(client, CW_OP_DROP, 0, &ref, sizeof ref);
}

int raw_ping(struct raw_client *client) {
    static _Thread_local struct raw_mail mail;
    int code = 0;
    for (int i = 0; i < 3 && code == 0; i++)
        code = raw_call(client, CW_OP_PING, NULL, 0, &mail);
    return code;
}

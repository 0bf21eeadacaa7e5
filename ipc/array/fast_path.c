/*
 * Fast path: see fast_path.h. One socket a client, made when it is first needed, one request at a
 * time: a second thread that comes meanwhile asks the broker. Whatever is not an answer in time (a
 * bridge that stands, is started anew, or fetches something large) closes the socket, and the
 * broker is asked: it knows whether the bridge lives, and the array is fetched once all the same.
 *
 * What the bridge says is checked as what any other process says: place and layout here, the block
 * by taking a lease. If this process dies the kernel closes the socket.
 *
 * With the first answer come the bridge's unnamed replicas, which stay when the fast path is
 * closed: they count as long as the broker says that its bridge is the one that made them.
 */
#include "ipc/array/array.h"
#include "ipc/client.h"
#include "ipc/array/fast_path.h"

#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "ipc/request/address.h"
#include "ipc/base/meta.h"
#include "shm/base/alive.h"
#include "shm/names/unnamed.h"
#include "shm/base/fd.h"

#define ANSWER_TIMEOUT_NS 50000000ll  /* of the bridge */
#define AGAIN_NS          100000000ll /* before it is looked for again where there was none */
#define NAPS_MOST         5

struct answer {
    struct cw_fast_path_answer head;
    uint8_t text[CW_META_MAX > CW_DETAIL_MAX ? CW_META_MAX : CW_DETAIL_MAX];
};

void cw_fast_path_close(cw_client *client) {
    if (client->fast_path >= 0)
        close(client->fast_path);
    client->fast_path = -1;
}

static int fast_path_connect(cw_client *client) {
    struct timeval timeout = {.tv_usec = ANSWER_TIMEOUT_NS / 1000};
    struct cw_address address;
    struct sockaddr_un name;
    socklen_t length;
    int folder;
    int64_t now_ns = cw_now_ns();
    if (now_ns < client->fast_path_after_ns)
        return -EAGAIN;
    client->fast_path_after_ns = now_ns + AGAIN_NS;
    if (cw_address_find(client->address, &address) != 0 ||
        cw_address_open_folder(&address, false, &folder) != 0)
        return -EAGAIN;
    cw_address_to_fast_path(&address);
    cw_address_sockaddr(&address, folder, &name, &length);
    /* A queue that is full would be waited for. */
    int fd = cw_fd_above_stdio(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    bool ok = fd >= 0 && connect(fd, (struct sockaddr *)&name, length) == 0 &&
              setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0 &&
              fcntl(fd, F_SETFL, 0) == 0;
    close(folder);
    if (!ok) {
        if (fd >= 0)
            close(fd);
        return -EAGAIN;
    }
    client->fast_path = fd;
    client->fast_path_after_ns = 0;
    return 0;
}

/* The unnamed replicas, or what says that it is one. */
static void take_unnamed(cw_client *client, int fd) {
    struct cw_segment fresh, before;
    if (cw_unnamed_open(fd, client->instance, &fresh) != 0)
        return; /* gets ask by the fast path */
    pthread_mutex_lock(&client->lock);
    before = client->unnamed;
    client->unnamed = fresh;
    pthread_mutex_unlock(&client->lock);
    cw_segment_close(&before);
}

/* The descriptor that came, -1: none. If there were more the kernel has cut them off: the room is
 * of one (CMSG_LEN; CMSG_SPACE, which is aligned, has room for two). */
static int fd_of(struct msghdr *message) {
    int fd = -1;
    struct cmsghdr *head = CMSG_FIRSTHDR(message);
    if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
        head->cmsg_len == CMSG_LEN(sizeof fd))
        memcpy(&fd, CMSG_DATA(head), sizeof fd);
    return fd;
}

static ssize_t take_answer(cw_client *client, struct answer *answer, int flags) {
    _Alignas(struct cmsghdr) uint8_t room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {answer, sizeof *answer};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = room,
                             .msg_controllen = CMSG_LEN(sizeof(int))};
    ssize_t got = recvmsg(client->fast_path, &message, MSG_CMSG_CLOEXEC | flags);
    int fd = got < 0 ? -1 : fd_of(&message);
    if (fd >= 0)
        take_unnamed(client, fd);
    return got;
}

/*
 * Waits for the answer; awake for as long as a wake-up takes where the bridge runs on another core,
 * which then need not wake this one. Where that was in vain (the other node is far away, or cores
 * are short) twice in a row, it sleeps the next times: once at first, up to 2^NAPS_MOST times where
 * it always is.
 */
static ssize_t await_answer(cw_client *client, struct answer *answer) {
    ssize_t got = -1;
    if (client->fast_path_backoff)
        client->fast_path_backoff--;
    else if (client->unnamed.base && cw_sleeper_elsewhere(cw_unnamed_bridge(&client->unnamed))) {
        int64_t until_ns = cw_now_ns() + CW_SPIN_NS;
        do {
            got = take_answer(client, answer, MSG_DONTWAIT);
        } while (got < 0 && errno == EAGAIN && cw_now_ns() < until_ns);
        if (got >= 0 || errno != EAGAIN) {
            client->fast_path_misses = 0;
            return got;
        }
        client->fast_path_backoff =
            client->fast_path_misses ? 1u << (client->fast_path_misses - 1) : 0;
        client->fast_path_misses += client->fast_path_misses <= NAPS_MOST;
    }
    return take_answer(client, answer, 0);
}

/* The answer's bytes, or -EAGAIN, -EINTR; then the fast path is closed. */
static ssize_t ask(cw_client *client, const struct cw_name_key *key, struct answer *answer) {
    struct cw_remote remote = {.verb = CW_REMOTE_GET,
                               .key_bytes = (uint16_t)key->length,
                               .slab = (uint32_t)sched_getcpu() + 1};
    struct iovec parts[] = {{&remote, sizeof remote}, {(void *)(uintptr_t)key->text, key->length}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t got = -1;
    if (sendmsg(client->fast_path, &message, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        got = await_answer(client, answer);
    if (got > 0)
        return got;
    int code = got < 0 && errno == EINTR ? -EINTR : -EAGAIN;
    cw_fast_path_close(client);
    return code;
}

int cw_fast_path_find(cw_client *client, const struct cw_name_key *key, uint32_t flags,
                      cw_array **out) {
    struct cw_found found;
    struct cw_shape shape;
    const struct cw_entry *at = &found.entry;
    pthread_mutex_lock(&client->lock);
    int code = client->unnamed.base ? 0 : -EAGAIN;
    if (code == 0)
        code = cw_unnamed_find(&client->unnamed, key->text, key->length, cw_now_ns(), &found);
    /* BD1: after the record was copied (D4); then nobody was told anything newer by another bridge.
     */
    if (code == 0 &&
        CW_LOAD(BD1, &client->root->bridge, acquire) != cw_unnamed_session(&client->unnamed))
        code = -EAGAIN;
    if (code == 0)
        code = cw_meta_decode(found.meta, at->meta_bytes, at->size_bytes, &shape);
    if (code == 0)
        code = cw_array_attach(client, at->slab, at->block, at->gen, at->offset_bytes,
                               at->size_bytes, &shape, flags | CW_CURRENT, out);
    pthread_mutex_unlock(&client->lock);
    if (code == -EINTR)
        return code;           /* a signal ends the call: it is not asked for again */
    return code ? -EAGAIN : 0; /* whatever it is, who is asked by the fast path says so */
}

int cw_fast_path_open(cw_client *client, const struct cw_fast_path_answer *at, size_t bytes,
                      uint32_t flags, cw_array **out) {
    struct cw_shape shape;
    if (bytes < sizeof *at || bytes != sizeof *at + at->text_bytes || at->status ||
        at->instance != client->instance)
        return -EAGAIN;
    if (cw_meta_is_remote_tree(at + 1, at->text_bytes) && !(flags & CW_INDEX))
        return cw_fail(-EISDIR, "the name means a tree of another node: get it as a tree");
    if (cw_meta_is_remote_tree(at + 1, at->text_bytes))
        cw_shape_bytes(at->size_bytes, &shape);
    else if (cw_meta_decode(at + 1, at->text_bytes, at->size_bytes, &shape) != 0)
        return -EAGAIN;
    flags &= ~CW_INDEX;
    pthread_mutex_lock(&client->lock);
    int code = cw_array_attach(client, at->slab, at->block, at->gen, at->offset_bytes,
                               at->size_bytes, &shape, flags, out);
    pthread_mutex_unlock(&client->lock);
    return code == -ESTALE ? -EAGAIN : code;
}

int cw_fast_path_get(cw_client *client, const struct cw_name_key *key, uint32_t flags,
                     int64_t until_ns, cw_array **out) {
    struct answer answer;
    if (until_ns != INT64_MAX && until_ns - cw_now_ns() < ANSWER_TIMEOUT_NS)
        return -EAGAIN;
    if (pthread_mutex_trylock(&client->fast_path_lock) != 0)
        return -EAGAIN;
    int code = client->fast_path >= 0 ? 0 : fast_path_connect(client);
    ssize_t got = code ? code : ask(client, key, &answer);
    if (got > 0 && ((size_t)got < sizeof answer.head || answer.head.status > 0 ||
                    (size_t)got != sizeof answer.head + answer.head.text_bytes)) {
        cw_fast_path_close(client); /* not the bridge of this version */
        got = -EAGAIN;
    }
    pthread_mutex_unlock(&client->fast_path_lock);
    if (!cw_alive(&client->root->alive))
        return -EAGAIN; /* there may be another broker, and another bridge, by now */
    if (got < 0)
        return got == -EINTR ? cw_fail(-EINTR, "a signal came while waiting for the bridge")
                             : -EAGAIN;
    if (answer.head.status < 0)
        return cw_fail(answer.head.status, "%.*s", (int)answer.head.text_bytes,
                       (const char *)answer.text);
    return cw_fast_path_open(client, &answer.head, (size_t)got, flags, out);
}

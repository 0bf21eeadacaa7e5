/*
 * Requests with descriptors, after HELLO: slabs in and out, segments of the directory, further
 * lease tables, fork pipes. The loop's thread alone. Each body was copied; its size is checked
 * here.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "broker/broker.h"
#include "broker/core/errors.h"
#include "broker/memory/slabs.h"
#include "broker/memory/fences.h"
#include "broker/memory/inherited.h"
#include "broker/session/refusals.h"
#include "broker/session/session.h"
#include "broker/session/socket.h"

struct answer {
    int fds[2];
    uint32_t fd_count;
    union {
        struct cw_slab_info slab;
        struct cw_segment_reply segment;
        struct cw_fence_page fences;
    } body;
    uint32_t body_bytes;
};

/* The answer is a segment's descriptor, which stays the broker's, and a body of so many bytes. */
static int answer_segment(struct answer *answer, const struct cw_segment *segment,
                          uint32_t body_bytes) {
    answer->fds[0] = segment->fd;
    answer->fd_count = 1;
    answer->body_bytes = body_bytes;
    return 0;
}

static int slab_add(struct cwd_broker *b, struct cwd_session *session, struct cwd_mail *mail,
                    struct answer *answer) {
    struct cw_slab_info info;
    memcpy(&info, mail->body, sizeof info);
    if (mail->fd_count != 2)
        return cw_fail(-EPROTO, "a slab comes with 2 descriptors, data and block table; %u came",
                       mail->fd_count);
    int fds[2] = {mail->fds[0], mail->fds[1]};
    mail->fds[0] = mail->fds[1] = -1;
    answer->body_bytes = sizeof answer->body.slab;
    return cwd_slab_add(b, session, &info, fds, &answer->body.slab);
}

static int slab_open(struct cwd_broker *b, struct cwd_session *session, struct cwd_mail *mail,
                     struct answer *answer) {
    struct cw_slab_request request;
    (void)session;
    memcpy(&request, mail->body, sizeof request);
    struct cwd_slab *slab = cwd_slab_find(b, request.slab);
    if (!slab)
        return cw_fail(-ESTALE, "the array is gone: there is no slab %u", request.slab);
    answer->fds[0] = slab->data_fd;
    answer->fds[1] = slab->segment.fd;
    answer->fd_count = 2;
    answer->body.slab = slab->info;
    answer->body_bytes = sizeof answer->body.slab;
    return 0;
}

static int segment_open(struct cwd_broker *b, struct cwd_session *session, struct cwd_mail *mail,
                        struct answer *answer) {
    struct cw_segment_request request;
    const struct cw_segment *segment;
    (void)session;
    memcpy(&request, mail->body, sizeof request);
    if (cw_directory_segment(b->directory, request.kind, request.which, &segment) != 0)
        return cw_fail(-ENOENT, "the directory has no segment %llu of kind %u",
                       (unsigned long long)request.which, request.kind);
    answer->body.segment.size_bytes = segment->size_bytes;
    return answer_segment(answer, segment, sizeof answer->body.segment);
}

static int lease_table(struct cwd_broker *b, struct cwd_session *session, struct cwd_mail *mail,
                       struct answer *answer) {
    const struct cw_segment *segment;
    (void)mail;
    int code = cwd_session_add_table(b, session, &segment);
    if (code)
        return code;
    answer->body.segment.size_bytes = segment->size_bytes;
    return answer_segment(answer, segment, sizeof answer->body.segment);
}

static int fork_leases(struct cwd_broker *b, struct cwd_session *session, struct cwd_mail *mail,
                       struct answer *answer) {
    (void)answer;
    if (mail->fd_count != 1)
        return cw_fail(-EPROTO, "FORK brings one descriptor, the read end of a pipe; %u came",
                       mail->fd_count);
    int code = cwd_inherited_new(b, session, mail->fds[0]);
    if (code == 0)
        mail->fds[0] = -1;
    return code;
}

static int fences_add(struct cwd_broker *b, struct cwd_session *session, struct cwd_mail *mail,
                      struct answer *answer) {
    const struct cw_segment *segment;
    (void)mail;
    int code = cwd_fences_add(b, session, &answer->body.fences, &segment);
    return code ? code : answer_segment(answer, segment, sizeof answer->body.fences);
}

static int fences_open(struct cwd_broker *b, struct cwd_session *session, struct cwd_mail *mail,
                       struct answer *answer) {
    struct cw_fence_page request;
    const struct cw_segment *segment;
    (void)session;
    memcpy(&request, mail->body, sizeof request);
    int code = cwd_fences_open(b, request.page, &answer->body.fences, &segment);
    return code ? code : answer_segment(answer, segment, sizeof answer->body.fences);
}

static const struct {
    int (*serve)(struct cwd_broker *, struct cwd_session *, struct cwd_mail *, struct answer *);
    uint32_t body_bytes;
} operations[] = {
    [CW_OP_SLAB_ADD] = {slab_add, sizeof(struct cw_slab_info)},
    [CW_OP_SLAB_OPEN] = {slab_open, sizeof(struct cw_slab_request)},
    [CW_OP_SEGMENT_OPEN] = {segment_open, sizeof(struct cw_segment_request)},
    [CW_OP_LEASE_TABLE] = {lease_table, 0},
    [CW_OP_FORK] = {fork_leases, 0},
    [CW_OP_FENCES_ADD] = {fences_add, 0},
    [CW_OP_FENCES_OPEN] = {fences_open, sizeof(struct cw_fence_page)},
};

void cwd_descriptor_request(struct cwd_broker *b, struct cwd_session *session,
                            struct cwd_mail *mail) {
    struct answer answer = {.fd_count = 0};
    uint16_t op = mail->head.op;
    if (op >= sizeof operations / sizeof *operations || !operations[op].serve) {
        char reason[80];
        snprintf(reason, sizeof reason, "op %u is no request of the socket", op);
        cwd_session_drop(b, session, reason);
        return;
    }
    if (mail->body_bytes != operations[op].body_bytes) {
        char reason[80];
        snprintf(reason, sizeof reason, "op %u came with a body of %u bytes, it has %u", op,
                 mail->body_bytes, operations[op].body_bytes);
        cwd_session_drop(b, session, reason);
        return;
    }
    int code = cwd_mail_check(mail);
    if (code == 0)
        code = operations[op].serve(b, session, mail, &answer);
    if (cwd_is_error(code)) {
        cwd_errors_note(session->pid, cw_detail());
        cwd_refusal(b, session);
    }
    bool sent = cwd_socket_reply(b, session, &mail->head, code, &answer.body, answer.body_bytes,
                                 answer.fds, answer.fd_count);
    if (code == 0 && op == CW_OP_LEASE_TABLE)
        cwd_session_table_sent(b, session, sent);
    if (code == 0 && op == CW_OP_SLAB_ADD && !sent)
        cwd_slab_orphan(b, cwd_slab_find(b, answer.body.slab.slab));
    if (code == 0 && op == CW_OP_FENCES_ADD && !sent)
        cwd_fences_take_back(b, session, answer.body.fences.page);
}

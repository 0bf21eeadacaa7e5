/*
 * Socket: messages with descriptors, in and out. Nothing here waits for the client.
 */
#ifndef CW_BROKER_SESSION_SOCKET_H
#define CW_BROKER_SESSION_SOCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/wire.h"

#define CWD_FDS_MAX      4 /* in one message of a client's */
#define CWD_FDS_SENT_MAX 6 /* in one to a client */

struct cwd_broker;
struct cwd_session;

struct cwd_mail { /* one message from a client, our own copy */
    struct cw_message head;
    uint8_t body[CW_MESSAGE_MAX];
    uint32_t body_bytes;
    int fds[CWD_FDS_MAX]; /* taken: set to -1 */
    uint32_t fd_count;
    bool fds_lost; /* descriptors came that this process had no room for */
};

/* 0, or -EDQUOT where descriptors were lost on their way in. */
int cwd_mail_check(const struct cwd_mail *mail);
/* epoll told something about the session's socket; what it is, receiving shows. */
void cwd_socket_on_event(struct cwd_broker *broker, struct cwd_session *session);
/* Sends a reply; the descriptors stay ours. A client that does not read is dropped. status < 0: the
 * body is the sentence of this thread's last failure. Returns whether it was sent. */
bool cwd_socket_reply(struct cwd_broker *broker, struct cwd_session *session,
                      const struct cw_message *request, int status, const void *body,
                      uint32_t body_bytes, const int *fds, uint32_t fd_count);
/* Tells a client why it is dropped, if it takes that at once. */
void cwd_socket_last_word(struct cwd_session *session, int status, const char *reason);

/* hello.c: the first message of a connection. */
void cwd_hello(struct cwd_broker *broker, struct cwd_session *session, struct cwd_mail *mail);
/* Is this connection, whose first message has come, to be heard later, since its process was
 * refused too often? Then it is watched for its end alone until cwd_hello_again(). */
bool cwd_hello_waits(struct cwd_broker *broker, struct cwd_session *session);
void cwd_hello_again(struct cwd_broker *broker, struct cwd_session *session);
/* descriptor_requests.c: all later ones. */
void cwd_descriptor_request(struct cwd_broker *broker, struct cwd_session *session,
                            struct cwd_mail *mail);

#endif

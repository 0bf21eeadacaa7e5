/*
 * Exported descriptors: see share.h.
 */
#include "tests/fakecuda/memory/share.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC 0x66616b65u

CUresult fake_share_export(struct fake_share share, int memory_fd, int keeper_fd, int *fd) {
    int pair[2], fds[2] = {memory_fd, keeper_fd};
    share.magic = MAGIC;
    union {
        char bytes[CMSG_SPACE(sizeof fds)];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    struct iovec part = {&share, sizeof share};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(head), fds, sizeof fds);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    ssize_t sent = sendmsg(pair[1], &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0)
        fprintf(stderr, "fakecuda: exporting memory: %m\n");
    close(pair[1]);
    if (sent < 0) {
        close(pair[0]);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *fd = pair[0];
    return CUDA_SUCCESS;
}

CUresult fake_share_import(int fd, struct fake_share *share, int *memory_fd, int *keeper_fd) {
    int fds[2];
    union {
        char bytes[CMSG_SPACE(sizeof fds)];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    struct iovec part = {share, sizeof *share};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t got = recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    size_t count = head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS
                       ? (head->cmsg_len - CMSG_LEN(0)) / sizeof(int)
                       : 0;
    if (count)
        memcpy(fds, CMSG_DATA(head), count * sizeof(int));
    if (got != sizeof *share || share->magic != MAGIC || count != 2) {
        for (size_t i = 0; i < count; i++)
            close(fds[i]);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *memory_fd = fds[0];
    *keeper_fd = fds[1];
    return CUDA_SUCCESS;
}

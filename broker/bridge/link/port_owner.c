/*
 * Port owner: see port_owner.h. The kernel's list of sockets has the number of the one that
 * listens; the process with a descriptor of that number has it.
 */
#include "broker/bridge/link/port_owner.h"

#include <dirent.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/layout.h"

#define LISTENS 0x0a /* the kernel's TCP_LISTEN */

/* Is `theirs`, as the kernel writes it (words of 8 hexadecimal digits), at the same address, or one
 * of both at all of them? */
static bool same_host(const struct addrinfo *at, const char *theirs) {
    const struct sockaddr_in *four = (const struct sockaddr_in *)at->ai_addr;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)at->ai_addr;
    const void *ours =
        at->ai_family == AF_INET ? (const void *)&four->sin_addr : (const void *)&six->sin6_addr;
    uint32_t words[4] = {0};
    size_t count = at->ai_family == AF_INET ? 1 : 4;
    char text[33] = "";
    memcpy(words, ours, count * sizeof *words);
    for (size_t i = 0; i < count; i++)
        snprintf(text + 8 * i, 9, "%08X", words[i]);
    return strcmp(text, theirs) == 0 || strspn(text, "0") == 8 * count ||
           strspn(theirs, "0") == strlen(theirs);
}

/* The number of the socket that listens there, and whose it is; 0: none. */
static unsigned long find_socket(const struct addrinfo *at, int pid, const char *table,
                                 unsigned *uid) {
    const struct sockaddr_in *four = (const struct sockaddr_in *)at->ai_addr; /* or six: the same */
    char path[64], line[512], self[16] = "self";
    unsigned long found = 0;
    if (pid)
        snprintf(self, sizeof self, "%d", pid);
    snprintf(path, sizeof path, "/proc/%s/net/%s", self, table);
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        char host[33];
        unsigned port, state;
        unsigned long inode;
        if (sscanf(line, " %*u: %32[0-9A-F]:%x %*s %x %*s %*s %*s %u %*s %lu", host, &port, &state,
                   uid, &inode) == 5 &&
            state == LISTENS && port == ntohs(four->sin_port) && same_host(at, host))
            found = inode;
    }
    if (file)
        fclose(file);
    return found;
}

static bool has_socket(const char *pid, unsigned long inode) {
    char path[64], wanted[48], link[48];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%.16s/fd", pid);
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && !found && (entry = readdir(folder));) {
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, link, sizeof link - 1);
        link[length > 0 ? length : 0] = 0;
        found = strcmp(link, wanted) == 0;
    }
    if (folder)
        closedir(folder);
    return found;
}

/* The process that has it; 0: none that we may look into. */
static int find_owner(unsigned long inode) {
    int found = 0;
    DIR *folder = opendir("/proc");
    for (struct dirent *entry; folder && !found && (entry = readdir(folder));)
        if (strspn(entry->d_name, "0123456789") == strlen(entry->d_name) &&
            has_socket(entry->d_name, inode))
            found = atoi(entry->d_name);
    if (folder)
        closedir(folder);
    return found;
}

int cwb_port_owner(const struct addrinfo *at, int pid, char text[CWB_PORT_OWNER_TEXT]) {
    char path[64], comm[32] = "";
    unsigned uid = 0;
    unsigned long inode = find_socket(at, pid, at->ai_family == AF_INET ? "tcp" : "tcp6", &uid);
    *text = 0;
    if (!inode)
        return -1;
    int owner = find_owner(inode);
    if (!owner) {
        snprintf(text, CWB_PORT_OWNER_TEXT, "a process of the user %u that cannot be seen here",
                 uid);
        return 0;
    }
    snprintf(path, sizeof path, "/proc/%d/comm", owner);
    FILE *file = fopen(path, "re");
    if (file) {
        if (fgets(comm, sizeof comm, file))
            comm[strcspn(comm, "\n")] = 0;
        fclose(file);
    }
    cw_text_clean(comm, strlen(comm));
    snprintf(text, CWB_PORT_OWNER_TEXT, "pid %d (%s)", owner, comm);
    return owner;
}

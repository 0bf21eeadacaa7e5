/*
 * What `cableway doctor` asks of the bridge's program: how it would wait for sockets, this node's
 * key, its peers. One JSON object, each thing tried by the code that the running bridge uses.
 */
#include "broker/bridge/cli/doctor.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "broker/bridge/cli/command.h"
#include "broker/bridge/cli/list.h"
#include "broker/bridge/tls/folder.h"
#include "broker/bridge/io/io.h"
#include "broker/bridge/link/peer_list.h"
#include "broker/bridge/link/port_owner.h"
#include "broker/bridge/tls/tls.h"
#include "ipc/array/remote_name.h"

#define PATIENCE_NS 2000000000

static void set(json_t *out, const char *key, const char *text) {
    json_t *made = text && *text ? json_string(text) : json_null();
    json_object_set_new(out, key, made ? made : json_string("(no UTF-8)"));
}

static void look_at_sockets(json_t *out) {
    const char *engine = secure_getenv("CABLEWAY_BRIDGE_EPOLL"), *why = "";
    struct cwb_io *io;
    bool failed = cwb_io_new(engine && *engine, false, &io, &why) != 0;
    set(out, "sockets", failed ? NULL : cwb_io_kind(io));
    set(out, "sockets_why", failed ? cw_detail() : why);
    if (!failed)
        cwb_io_free(io);
}

static void look_at_key(json_t *out, const char *folder) {
    char print[CWB_PRINT_TEXT] = "", path[PATH_MAX];
    struct cwb_tls *tls;
    int code = cwb_tls_new(folder, 0, &tls);
    if (code == 0)
        cwb_print_text(cwb_tls_print(tls), print);
    set(out, "key", print);
    set(out, "key_why", code ? cw_detail() : NULL);
    set(out, "key_ends",
        code == 0 && cwb_tls_ends_soon(tls, (int64_t)time(NULL)) ? cw_detail() : NULL);
    bool there = cwb_folder_path(folder, "node.key", path) == 0 &&
                 cwb_folder_stamp(folder, "node.key").inode != 0;
    json_object_set_new(out, "key_there", json_boolean(there));
    if (code == 0)
        cwb_tls_free(tls);
}

static void look_at_peers(json_t *out, const char *folder) {
    struct cwb_peer_config *configs;
    uint32_t count = 0, known = 0;
    int code = cwb_peers_read(folder, &configs, &count);
    for (uint32_t i = 0; code == 0 && i < count; i++)
        known += cwb_config_known(&configs[i]);
    set(out, "peers_why", code ? cw_detail() : NULL);
    json_object_set_new(out, "peers", json_integer(count));
    json_object_set_new(out, "peers_unknown", json_integer(count - known));
    if (code == 0)
        cwb_configs_free(configs, count);
}

/* What the running bridge warns of, the first of its peers. A bridge that stands says nothing. */
static void ask_bridge(json_t *out) {
    char warning[CW_DETAIL_MAX], line[CW_NODE_MAX + CW_DETAIL_MAX + 16], *texts;
    cw_client *client;
    uint64_t count;
    if (cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client) != 0)
        return;
    if (cw_remote_peers(client, PATIENCE_NS, &texts, &count) == 0) {
        for (char *at = texts; count; count--, at += strlen(at) + 1) {
            if (!cwb_text_value(at, "warning", warning, sizeof warning))
                continue;
            snprintf(line, sizeof line, "%.*s: %s", (int)strcspn(at, "\n"), at, warning);
            set(out, "peers_warning", line);
            break;
        }
        cw_free(texts);
    }
    cw_client_unref(client);
}

/* Whether the bridge listens at an address that it was told: "", or why not. */
static void look_at_port(const char *text, int pid, char *why, size_t room) {
    char host[CW_ADDRESS_MAX + 1], port[8], who[CWB_PORT_OWNER_TEXT];
    struct addrinfo *found = NULL, hints = {.ai_family = AF_UNSPEC,
                                            .ai_socktype = SOCK_STREAM,
                                            .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    *why = 0;
    if (!cw_address_split(text, host, port) || strcmp(port, "0") == 0 ||
        getaddrinfo(*host ? host : NULL, port, &hints, &found) != 0)
        return;
    bool here = false; /* else there may be no such family */
    for (struct addrinfo *at = found; at; at = at->ai_next) {
        int owner = cwb_port_owner(at, pid, who);
        here = here || owner == pid;
        if (owner >= 0 && owner != pid)
            snprintf(why, room, "%s listens at %.100s", who, text);
    }
    if (!here && !*why)
        snprintf(why, room, "nothing listens at %.100s yet", text);
    freeaddrinfo(found);
}

/* Where the running bridge was told to listen, and what of that it does not do. */
static void look_at_ports(json_t *out, int pid) {
    char path[64], words[8192], why[CWB_PORT_OWNER_TEXT + 128], whys[1024] = "", where[1024] = "";
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    FILE *file = fopen(path, "re");
    size_t count = file ? fread(words, 1, sizeof words - 1, file) : 0;
    if (file)
        fclose(file);
    words[count] = 0;
    for (char *at = words; at < words + count; at += strlen(at) + 1) {
        char *next = at + strlen(at) + 1;
        if (strcmp(at, "--listen") != 0 || next >= words + count)
            continue;
        size_t used = strlen(where), told = strlen(whys);
        snprintf(where + used, sizeof where - used, "%s%s", used ? ", " : "", next);
        look_at_port(next, pid, why, sizeof why);
        if (*why)
            snprintf(whys + told, sizeof whys - told, "%s%s", told ? "; " : "", why);
    }
    set(out, "listens", where);
    set(out, "listens_why", whys);
}

int cwb_command_doctor(int running) {
    char folder[PATH_MAX];
    json_t *out = json_object();
    CW_ASSERT(out);
    const char *of = cwb_node_folder(folder);
    set(out, "folder", of);
    look_at_sockets(out);
    look_at_key(out, of);
    look_at_peers(out, of);
    if (running) {
        look_at_ports(out, running);
        ask_bridge(out);
    }
    bool told = json_dumpf(out, stdout, 0) == 0 && fputc('\n', stdout) != EOF && !fflush(stdout);
    json_decref(out);
    return told ? EXIT_DONE : EXIT_FAILED;
}

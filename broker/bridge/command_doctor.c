/*
 * What `cableway doctor` asks of the bridge's program: how it would wait for sockets, this node's
 * key, its peers. One JSON object, each thing tried by the code that the running bridge uses.
 */
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "broker/bridge/command.h"
#include "broker/bridge/folder.h"
#include "broker/bridge/io.h"
#include "broker/bridge/peers.h"
#include "broker/bridge/tls.h"

static void set(json_t *out, const char *key, const char *text) {
    json_t *made = text && *text ? json_string(text) : json_null();
    json_object_set_new(out, key, made ? made : json_string("(no UTF-8)"));
}

static void look_at_sockets(json_t *out) {
    const char *engine = secure_getenv("CABLEWAY_BRIDGE_EPOLL"), *why = "";
    struct cwb_io *io;
    bool failed = cwb_io_new(engine && *engine, &io, &why) != 0;
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

int cwb_command_doctor(void) {
    char folder[PATH_MAX];
    json_t *out = json_object();
    CW_ASSERT(out);
    const char *of = cwb_node_folder(folder);
    set(out, "folder", of);
    look_at_sockets(out);
    look_at_key(out, of);
    look_at_peers(out, of);
    bool told = json_dumpf(out, stdout, 0) == 0 && fputc('\n', stdout) != EOF && !fflush(stdout);
    json_decref(out);
    return told ? EXIT_DONE : EXIT_FAILED;
}

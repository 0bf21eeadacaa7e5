/*
 * Doctor: other nodes. What cableway-bridge tells of itself (`cableway-bridge doctor`), and where
 * the one that runs was told to listen. Nobody needs it who stays on one node, so nothing here is
 * "missing".
 */
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "tools/cli.h"
#include "tools/doctor/doctor.h"
#include "tools/monitor.h"

/* What the program prints; running: the pid of the broker's bridge, 0: none. NULL: it is no JSON
 * object. */
static json_t *ask(const char *path, int running) {
    char *quoted = NULL;
    size_t size;
    FILE *out = open_memstream(&quoted, &size);
    CW_ASSERT(out);
    fputc('\'', out);
    for (const char *at = path; *at; at++) {
        if (*at == '\'')
            fputs("'\\'", out);
        fputc(*at, out);
    }
    fputs("' doctor", out);
    if (running)
        fprintf(out, " running %d", running);
    CW_ASSERT(fclose(out) == 0);
    FILE *pipe = popen(quoted, "re");
    json_t *told = pipe ? json_loadf(pipe, 0, NULL) : NULL;
    if (pipe)
        pclose(pipe);
    free(quoted);
    return told;
}

static const char *text_of(json_t *told, const char *key) {
    return json_string_value(json_object_get(told, key));
}

static void check_sockets(struct doctor *doctor, json_t *told) {
    const char *kind = text_of(told, "sockets"), *why = text_of(told, "sockets_why");
    doctor_add(doctor,
               !kind ? DOCTOR_WARNING
               : why ? DOCTOR_INFO
                     : DOCTOR_OK,
               "bridge sockets",
               why ? "it works by epoll as well, with somewhat more CPU time" : NULL, "%s%s%s",
               kind ? kind : "none", why ? ": " : "", why ? why : "");
}

static void check_key(struct doctor *doctor, json_t *told) {
    const char *key = text_of(told, "key"), *why = text_of(told, "key_why");
    const char *ends = text_of(told, "key_ends");
    if (key && ends)
        doctor_add(doctor, DOCTOR_WARNING, "bridge key",
                   "give the node a new certificate: cableway keygen, with --sign where a CA signs",
                   "%s: %s in %s", ends, key, text_of(told, "folder"));
    else if (key)
        doctor_add(doctor, DOCTOR_OK, "bridge key", NULL, "%s in %s", key, text_of(told, "folder"));
    else if (json_is_true(json_object_get(told, "key_there")))
        doctor_add(doctor, DOCTOR_WARNING, "bridge key", "other nodes cannot be reached with it",
                   "%s", why ? why : "it cannot be read");
    else
        doctor_add(doctor, DOCTOR_INFO, "bridge key",
                   "cableway keygen makes one; only for other nodes", "none in %s",
                   text_of(told, "folder"));
}

static void check_peers(struct doctor *doctor, json_t *told) {
    const char *why = text_of(told, "peers_why"), *warning = text_of(told, "peers_warning");
    long long count = json_integer_value(json_object_get(told, "peers"));
    long long unknown = json_integer_value(json_object_get(told, "peers_unknown"));
    if (why)
        doctor_add(doctor, DOCTOR_WARNING, "bridge peers", "mend the file of peers", "%s", why);
    else if (warning)
        doctor_add(doctor, DOCTOR_WARNING, "bridge peers",
                   "perhaps one key lies on two machines (a cloned image, a shared home): give one "
                   "of both a key of its own (cableway keygen there, cableway peers here)",
                   "%s", warning);
    else if (unknown)
        doctor_add(doctor, DOCTOR_WARNING, "bridge peers",
                   "cableway peers add NAME ... --key or --ca says how they are known",
                   "%lld, of which %lld have neither key nor CA", count, unknown);
    else
        doctor_add(doctor, count ? DOCTOR_OK : DOCTOR_INFO, "bridge peers",
                   count ? NULL : "cableway peers add makes other nodes known", "%lld%s", count,
                   count ? " (cableway peers shows who is connected)" : "");
}

/* The pid of our broker's bridge; 0: none runs. */
static int bridge_pid(void) {
    struct monitor monitor;
    int found = 0;
    if (monitor_open(&monitor) != 0)
        return 0;
    for (unsigned i = 0; i < CW_MONITOR_CLIENTS; i++) {
        struct cw_monitor_client *row = &monitor.root->clients[i];
        uint64_t words[4];
        char comm[33] = "";
        if (!CW_LOAD(MON, &row->session, acquire))
            continue;
        for (int word = 0; word < 4; word++)
            words[word] = monitor_word(&row->comm[word]);
        memcpy(comm, words, sizeof words);
        if (strcmp(comm, "cableway-bridge") == 0)
            found = (int)CW_LOAD(MON, &row->pid, relaxed);
    }
    monitor_close(&monitor);
    return found;
}

static void check_running(struct doctor *doctor, int pid, json_t *told) {
    const char *where = text_of(told, "listens"), *why = text_of(told, "listens_why");
    if (!pid)
        doctor_add(doctor, DOCTOR_INFO, "bridge", NULL,
                   "does not run: cablewayd --listen PORT starts it, or the first //NODE/NAME");
    else if (where && !text_of(told, "key"))
        doctor_add(doctor, DOCTOR_WARNING, "bridge",
                   "cableway keygen: it listens as soon as there is a key",
                   "runs (pid %d), and does not listen at %s yet", pid, where);
    else if (why)
        doctor_add(doctor, DOCTOR_WARNING, "bridge",
                   "stop who listens there, or choose another port: it listens as soon as it can",
                   "runs (pid %d), and does not listen at %s: %s", pid, where, why);
    else
        doctor_add(doctor, DOCTOR_OK, "bridge", NULL, "runs (pid %d), %s%s", pid,
                   where ? "listens at " : "listens nowhere: only this node calls others",
                   where ? where : "");
}

void doctor_bridge(struct doctor *doctor) {
    char path[PATH_MAX];
    if (cli_bridge_path(path) != 0) {
        doctor_add(doctor, DOCTOR_INFO, "bridge",
                   "only names of other nodes need it: build with liburing-dev and libssl-dev, or "
                   "name it in CABLEWAY_BRIDGE",
                   "not installed: %s", cw_detail());
        return;
    }
    int pid = bridge_pid();
    json_t *told = ask(path, pid);
    if (!told) {
        doctor_add(doctor, DOCTOR_WARNING, "bridge",
                   "install the same release of cableway-bridge as of this command",
                   "%s tells nothing of itself", path);
        return;
    }
    check_running(doctor, pid, told);
    check_sockets(doctor, told);
    check_key(doctor, told);
    check_peers(doctor, told);
    json_decref(told);
}

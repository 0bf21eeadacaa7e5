/*
 * cableway peers list, show, wait: what the running bridge knows of each peer, as a table, as
 * texts, or as JSON; where no broker runs, what the file says. The bridge tells a text about each
 * peer: its name, then lines of two spaces, a key, a space and a value (cwb_job_peers()).
 *
 * A bridge that stands (or one that is being started again and again) answers nothing: after
 * PATIENCE_NS the command says so and ends.
 */
#include "broker/bridge/cli/list.h"

#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/bridge/cli/command.h"
#include "broker/bridge/tls/folder.h"
#include "broker/bridge/link/peer_list.h"
#include "ipc/array/remote_name.h"
#include "shm/base/wait.h"

#define PATIENCE_NS 5000000000

enum form { TABLE, TEXTS, JSON };

/* ---- one peer's text ---- */

bool cwb_text_value(const char *text, const char *key, char *value, size_t room) {
    size_t length = strlen(key);
    for (const char *line = strchr(text, '\n'); line && line[1]; line = strchr(line + 1, '\n')) {
        const char *at = line + 1;
        if (strncmp(at, "  ", 2) != 0 || strncmp(at + 2, key, length) != 0 || at[2 + length] != ' ')
            continue;
        at += length + 3;
        snprintf(value, room, "%.*s", (int)strcspn(at, "\n"), at);
        return strcmp(value, "-") != 0;
    }
    *value = 0;
    return false;
}

static json_t *number(const char *text, const char *key) {
    char value[32];
    return cwb_text_value(text, key, value, sizeof value) ? json_integer(strtoll(value, NULL, 10))
                                                          : json_null();
}

static json_t *string(const char *text, const char *key) {
    char value[1024];
    json_t *made =
        cwb_text_value(text, key, value, sizeof value) ? json_string(value) : json_null();
    return made ? made : json_null(); /* no UTF-8 */
}

/* Its connections: the links, and the streams beside them. */
static json_t *links_json(const char *text) {
    json_t *links = json_array();
    for (const char *line = strchr(text, '\n'); line && line[1]; line = strchr(line + 1, '\n')) {
        char kind[8], way[8], where[256];
        long long seconds, in, out;
        if (sscanf(line + 1, "  %7s %7s %255s seconds %lld bytes_in %lld bytes_out %lld", kind, way,
                   where, &seconds, &in, &out) == 6)
            json_array_append_new(links, json_pack("{s:s, s:s, s:s, s:I, s:I, s:I}", "kind", kind,
                                                   "way", way, "address", where, "seconds",
                                                   (json_int_t)seconds, "bytes_in", (json_int_t)in,
                                                   "bytes_out", (json_int_t)out));
    }
    return links;
}

static json_t *peer_json(const char *text) {
    static const char *const numbers[] = {"version", "rtt_us",      "bytes_in",   "bytes_out",
                                          "streams", "key_updates", "idle_closes"};
    static const char *const strings[] = {"state",  "address", "known_by",
                                          "engine", "error",   "warning"};
    json_t *peer = json_object();
    json_object_set_new(peer, "name", json_stringn(text, strcspn(text, "\n")));
    for (unsigned i = 0; i < sizeof strings / sizeof *strings; i++)
        json_object_set_new(peer, strings[i], string(text, strings[i]));
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(peer, numbers[i], number(text, numbers[i]));
    json_object_set_new(peer, "links", links_json(text));
    return peer;
}

/* ---- the table ---- */

static void add_bytes(char *out, size_t room, const char *text, const char *key) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    char value[32];
    if (!cwb_text_value(text, key, value, sizeof value)) {
        snprintf(out, room, "-");
        return;
    }
    double count = strtod(value, NULL);
    unsigned unit = 0;
    while (count >= 1024 && unit < 4) {
        count /= 1024;
        unit++;
    }
    snprintf(out, room, unit ? "%.1f %s" : "%.0f %s", count, units[unit]);
}

static int widest(char *const *texts, uint64_t count, const char *key, int least) {
    char value[CW_ADDRESS_MAX + 1];
    for (uint64_t i = 0; i < count; i++) {
        int length = (int)strcspn(texts[i], "\n");
        if (key && cwb_text_value(texts[i], key, value, sizeof value))
            length = (int)strlen(value);
        else if (key)
            length = 1;
        least = length > least ? length : least;
    }
    return least;
}

static void print_row(const char *text, int name_width, int address_width) {
    char state[64], address[CW_ADDRESS_MAX + 1], version[16], rtt[32], streams[16], in[32], out[32],
        error[CW_DETAIL_MAX];
    const char *none = "-";
    bool has_state = cwb_text_value(text, "state", state, sizeof state);
    bool has_address = cwb_text_value(text, "address", address, sizeof address);
    bool has_version = cwb_text_value(text, "version", version, sizeof version);
    if (cwb_text_value(text, "rtt_us", rtt, sizeof rtt - 3))
        strcat(rtt, " us");
    bool has_streams = cwb_text_value(text, "streams", streams, sizeof streams);
    bool has_error = cwb_text_value(text, "error", error, sizeof error);
    add_bytes(in, sizeof in, text, "bytes_in");
    add_bytes(out, sizeof out, text, "bytes_out");
    printf("%-*.*s  %-11s  %-*s  %7s  %9s  %10s  %10s  %7s  %s\n", name_width,
           (int)strcspn(text, "\n"), text, has_state ? state : none, address_width,
           has_address ? address : none, has_version ? version : none, *rtt ? rtt : none, in, out,
           has_streams ? streams : none, has_error ? error : none);
}

static void print_table(char *const *texts, uint64_t count) {
    int name_width = widest(texts, count, NULL, 4);
    int address_width = widest(texts, count, "address", 7);
    printf("%-*s  %-11s  %-*s  %7s  %9s  %10s  %10s  %7s  %s\n", name_width, "PEER", "STATE",
           address_width, "ADDRESS", "VERSION", "RTT", "IN", "OUT", "STREAMS", "LAST ERROR");
    for (uint64_t i = 0; i < count; i++)
        print_row(texts[i], name_width, address_width);
}

/* ---- all ---- */

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void print_all(char **texts, uint64_t count, enum form form) {
    qsort(texts, count, sizeof *texts, by_name);
    if (form == JSON) {
        json_t *all = json_array();
        for (uint64_t i = 0; i < count; i++)
            json_array_append_new(all, peer_json(texts[i]));
        json_dumpf(all, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(all);
    } else if (form == TEXTS) {
        for (uint64_t i = 0; i < count; i++)
            fputs(texts[i], stdout);
    } else if (count) {
        print_table(texts, count);
    }
}

/* of: NULL: all. Prints those of that name. */
static int print_some(char *texts, uint64_t count, const char *of, enum form form) {
    char **some = calloc(count + 1, sizeof *some);
    uint64_t found = 0;
    CW_ASSERT(some);
    for (char *at = texts; count; count--, at += strlen(at) + 1) {
        size_t length = strcspn(at, "\n");
        if (!of || (strlen(of) == length && memcmp(at, of, length) == 0))
            some[found++] = at;
    }
    print_all(some, found, form);
    free(some);
    if (of && !found) {
        fprintf(stderr, "cableway: there is no peer \"%s\"\n", of);
        return EXIT_NO_PEER;
    }
    if (!found)
        fputs("cableway: there are no peers; `cableway peers add` makes one known\n", stderr);
    return EXIT_DONE;
}

/* As the bridge would tell it. */
static int list_file(const char *folder, const char *of, enum form form) {
    struct cwb_peer_config *configs;
    uint32_t count;
    char *texts = NULL;
    size_t size_bytes = 0;
    if (cwb_peers_read(folder, &configs, &count) != 0)
        return cwb_complain(EXIT_FAILED);
    FILE *out = open_memstream(&texts, &size_bytes);
    CW_ASSERT(out);
    for (uint32_t i = 0; i < count; i++) {
        fprintf(out, "%s\n  state no broker\n  address %s\n  known_by %s\n", configs[i].name,
                *configs[i].address ? configs[i].address : "-",
                configs[i].pinned  ? "key"
                : configs[i].by_ca ? "ca"
                                   : "-");
        fputc(0, out);
    }
    CW_ASSERT(fclose(out) == 0);
    int exit_code = print_some(texts, count, of, form);
    free(texts);
    cwb_configs_free(configs, count);
    return exit_code;
}

/* The texts of all peers; EXIT_DONE or what was complained of. */
static int ask(cw_client *client, char **texts, uint64_t *count) {
    int code = cw_remote_peers(client, PATIENCE_NS, texts, count);
    if (code == 0)
        return EXIT_DONE;
    if (code != -ETIMEDOUT)
        return cwb_complain(EXIT_FAILED);
    fprintf(stderr,
            "cableway: the bridge has not answered for %d s: it is stopped, or cannot be "
            "started (the broker's log says why)\n",
            (int)(PATIENCE_NS / 1000000000));
    return EXIT_FAILED;
}

static int list(const char *of, enum form form) {
    char folder[PATH_MAX], *texts;
    uint64_t count;
    cw_client *client;
    int code = cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client);
    if (code == -ECONNRESET) {
        fprintf(stderr, "cableway: %s; this is what the file of peers says\n", cw_error());
        return list_file(cwb_node_folder(folder), of, form);
    }
    if (code)
        return cwb_complain(EXIT_FAILED);
    int exit_code = ask(client, &texts, &count);
    if (exit_code == EXIT_DONE) {
        exit_code = print_some(texts, count, of, form);
        cw_free(texts);
    }
    cw_client_unref(client);
    return exit_code;
}

/* ---- waiting ---- */

/* Is one of them not connected? Then which, and what it says. */
static const char *missing(const char *texts, uint64_t count, const char *of, bool *known) {
    char state[64];
    for (const char *at = texts; count; count--, at += strlen(at) + 1) {
        size_t length = strcspn(at, "\n");
        if (of && (strlen(of) != length || memcmp(at, of, length) != 0))
            continue;
        *known = true;
        if (!cwb_text_value(at, "state", state, sizeof state) || strcmp(state, "connected") != 0)
            return at;
    }
    return NULL;
}

static int wait_for(cw_client *client, const char *of, int64_t until_ns) {
    char *texts, error[CW_DETAIL_MAX];
    uint64_t count;
    for (;;) {
        bool known = of == NULL;
        struct timespec pause = {.tv_nsec = 50000000};
        int exit_code = ask(client, &texts, &count);
        if (exit_code != EXIT_DONE)
            return exit_code;
        const char *late = missing(texts, count, of, &known);
        if (!known) {
            fprintf(stderr, "cableway: there is no peer \"%s\"\n", of);
            exit_code = EXIT_NO_PEER;
        } else if (late && cw_now_ns() >= until_ns) {
            bool why = cwb_text_value(late, "error", error, sizeof error);
            fprintf(stderr, "cableway: the peer %.*s is not connected%s%s\n",
                    (int)strcspn(late, "\n"), late, why ? ": " : "", why ? error : "");
            exit_code = EXIT_LATE;
        } else if (late) {
            nanosleep(&pause, NULL);
            cw_free(texts);
            continue;
        }
        cw_free(texts);
        return exit_code;
    }
}

int cwb_command_wait(int argc, char **argv) {
    static const struct option names[] = {{"timeout", required_argument, NULL, 't'},
                                          {NULL, 0, NULL, 0}};
    double seconds = 60;
    char *end = NULL;
    int found;
    while ((found = getopt_long(argc, argv, "", names, NULL)) >= 0) {
        if (found != 't')
            return EXIT_WRONG;
        seconds = strtod(optarg, &end);
        if (*end || end == optarg || !(seconds >= 0 && seconds <= 1e9)) {
            fputs("cableway: --timeout is a number of seconds\n", stderr);
            return EXIT_WRONG;
        }
    }
    if (argc - optind > 1) {
        fputs("cableway: peers wait takes one NAME, or none for all (see cableway peers --help)\n",
              stderr);
        return EXIT_WRONG;
    }
    cw_client *client;
    int64_t until_ns = cw_now_ns() + (int64_t)(seconds * 1e9);
    if (cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client) != 0)
        return cwb_complain(EXIT_NO_BROKER);
    int exit_code = wait_for(client, optind < argc ? argv[optind] : NULL, until_ns);
    cw_client_unref(client);
    return exit_code;
}

/* ---- list, show ---- */

int cwb_command_list(int argc, char **argv) {
    static const struct option names[] = {{"json", no_argument, NULL, 'j'}, {NULL, 0, NULL, 0}};
    enum form form = strcmp(argv[0], "show") == 0 ? TEXTS : TABLE;
    int found;
    while ((found = getopt_long(argc, argv, "", names, NULL)) >= 0) {
        if (found != 'j')
            return EXIT_WRONG;
        form = JSON;
    }
    if (argc - optind > (strcmp(argv[0], "show") == 0)) {
        fprintf(stderr, "cableway: peers %s does not know \"%s\" (see cableway peers --help)\n",
                argv[0], argv[argc - 1]);
        return EXIT_WRONG;
    }
    return list(optind < argc ? argv[optind] : NULL, form);
}

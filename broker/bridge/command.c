/*
 * Commands: see command.h. The list of peers is a file that the running bridge reads again by
 * itself; `list` asks the bridge, and shows the file where none runs.
 */
#include "broker/bridge/command.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/bridge/peers.h"
#include "broker/bridge/tls.h"
#include "ipc/remote.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_WRONG = 2, EXIT_NO_PEER = 4 };

static int complain(int exit_code) {
    fprintf(stderr, "causeway: %s\n", cw_error());
    return exit_code;
}

static int print_own_key(const char *folder) {
    struct cwb_tls *tls;
    char text[CWB_PRINT_TEXT];
    if (cwb_tls_new(folder, &tls) != 0)
        return complain(EXIT_FAILED);
    cwb_print_text(cwb_tls_print(tls), text);
    puts(text);
    cwb_tls_free(tls);
    return EXIT_DONE;
}

int cwb_command_keygen(int argc, char **argv) {
    static const struct option names[] = {
        {"node", required_argument, NULL, 'n'},
        {"show", no_argument, NULL, 's'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    char folder[PATH_MAX], host[256] = "node";
    const char *node = NULL;
    bool show = false;
    int found;
    while ((found = getopt_long(argc, argv, "", names, NULL)) >= 0) {
        if (found == 'n')
            node = optarg;
        else if (found == 's')
            show = true;
        else if (found == 'h') {
            puts("Usage: causeway keygen [--node NAME] [--show]\n"
                 "Makes this node's key and certificate (node.key and node.crt in\n"
                 "$CAUSEWAY_NODE_DIR, else ~/.config/causeway) and prints the key's fingerprint,\n"
                 "which the other nodes pin with `causeway peers add`.\n\n"
                 "  --node NAME  the name in the certificate (default: the host's)\n"
                 "  --show       make nothing, print the fingerprint of the key that is there");
            return EXIT_DONE;
        } else
            return EXIT_WRONG;
    }
    if (optind < argc) {
        fprintf(stderr, "causeway: keygen takes no arguments (see causeway keygen --help)\n");
        return EXIT_WRONG;
    }
    cwb_node_folder(folder);
    if (show)
        return print_own_key(folder);
    if (!node) {
        (void)gethostname(host, sizeof host - 1);
        host[strcspn(host, ".")] = 0;
        node = cwb_node_valid(host) ? host : "node";
    }
    if (!cwb_node_valid(node)) {
        fprintf(stderr, "causeway: \"%s\" is no name of a node: 1 to %u of A-Z a-z 0-9 _ . -\n",
                node, CWB_NODE_MAX);
        return EXIT_WRONG;
    }
    if (cwb_keygen(folder, node) != 0)
        return complain(EXIT_FAILED);
    fprintf(stderr, "causeway: made %s/node.key and node.crt; this is the key's fingerprint:\n",
            folder);
    return print_own_key(folder);
}

/* ---- peers ---- */

static void peers_help(void) {
    puts(
        "Usage: causeway peers list\n"
        "       causeway peers add NAME [HOST:PORT] --key FINGERPRINT\n"
        "                          [--read PATTERN]... [--write PATTERN]...\n"
        "       causeway peers remove NAME\n"
        "The nodes that this one knows, kept in the file `peers` in $CAUSEWAY_NODE_DIR, else\n"
        "~/.config/causeway; a running broker's bridge reads it again by itself. Without an\n"
        "address a peer must connect to this node. Nothing may be read or written by a peer that\n"
        "no pattern allows (one of the shell's, * matches a / too), but arrays that were put with\n"
        "remote=\"read\". `add` replaces what was known under the name.");
}

static int list_live(cw_client *client) {
    char *texts;
    uint64_t count;
    if (cw_remote_peers(client, &texts, &count) != 0)
        return complain(EXIT_FAILED);
    for (char *at = texts; count; count--, at += strlen(at) + 1)
        fputs(at, stdout);
    cw_free(texts);
    return EXIT_DONE;
}

static int list_file(const char *folder) {
    struct cwb_peer_config *configs;
    uint32_t count;
    if (cwb_peers_read(folder, &configs, &count) != 0)
        return complain(EXIT_FAILED);
    for (uint32_t i = 0; i < count; i++)
        printf("%s\n  state no broker runs\n  address %s\n", configs[i].name,
               *configs[i].address ? configs[i].address : "-");
    cwb_configs_free(configs, count);
    return EXIT_DONE;
}

static int list(const char *folder) {
    cw_client *client;
    int code = cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client);
    if (code == -ECONNRESET)
        return list_file(folder);
    if (code)
        return complain(EXIT_FAILED);
    int exit_code = list_live(client);
    cw_client_unref(client);
    return exit_code;
}

static int parse_peer(int argc, char **argv, struct cwb_peer_config *config) {
    static const struct option names[] = {
        {"key", required_argument, NULL, 'k'},
        {"read", required_argument, NULL, 'r'},
        {"write", required_argument, NULL, 'w'},
        {NULL, 0, NULL, 0},
    };
    int found;
    while ((found = getopt_long(argc, argv, "", names, NULL)) >= 0) {
        const char *name = found == 'k'   ? "key"
                           : found == 'r' ? "read"
                           : found == 'w' ? "write"
                                          : NULL;
        if (!name)
            return EXIT_WRONG;
        if (cwb_config_set(config, name, optarg, "peers add") != 0)
            return complain(EXIT_WRONG);
    }
    if (argc - optind < 1 || argc - optind > 2 || !cwb_node_valid(argv[optind])) {
        fprintf(stderr,
                "causeway: peers add takes NAME and perhaps HOST:PORT; a name is 1 to %u of "
                "A-Z a-z 0-9 _ . - (see causeway peers --help)\n",
                CWB_NODE_MAX);
        return EXIT_WRONG;
    }
    strcpy(config->name, argv[optind]);
    if (argc - optind == 2 && cwb_config_set(config, "address", argv[optind + 1], "peers add") != 0)
        return complain(EXIT_WRONG);
    if (!config->pinned) {
        fprintf(stderr,
                "causeway: the key of %s is missing: --key FINGERPRINT, as `causeway "
                "keygen` printed it there\n",
                config->name);
        return EXIT_WRONG;
    }
    return EXIT_DONE;
}

/* Reads the list, takes a name out of it, puts config (if any) in, and writes it. */
static int change(const char *folder, const char *name, const struct cwb_peer_config *config) {
    struct cwb_peer_config *configs, changed[CWB_PEERS_MAX + 1];
    uint32_t count, kept = 0;
    if (cwb_peers_read(folder, &configs, &count) != 0)
        return complain(EXIT_FAILED);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(configs[i].name, name) != 0)
            changed[kept++] = configs[i];
    int exit_code = EXIT_DONE;
    if (!config && kept == count) {
        fprintf(stderr, "causeway: there is no peer \"%s\"\n", name);
        exit_code = EXIT_NO_PEER;
    } else if (kept == CWB_PEERS_MAX && config) {
        fprintf(stderr, "causeway: there are %u peers, and can be no more\n", kept);
        exit_code = EXIT_FAILED;
    } else {
        if (config)
            changed[kept++] = *config;
        if (cwb_peers_write(folder, changed, kept) != 0)
            exit_code = complain(EXIT_FAILED);
    }
    cwb_configs_free(configs, count);
    return exit_code;
}

int cwb_command_peers(int argc, char **argv) {
    char folder[PATH_MAX];
    cwb_node_folder(folder);
    const char *what = argc > 1 ? argv[1] : "list";
    if (strcmp(what, "--help") == 0) {
        peers_help();
        return EXIT_DONE;
    }
    if (strcmp(what, "list") == 0 && argc <= 2)
        return list(folder);
    if (strcmp(what, "remove") == 0 && argc == 3)
        return change(folder, argv[2], NULL);
    if (strcmp(what, "add") == 0) {
        struct cwb_peer_config *config = calloc(1, sizeof *config);
        CW_ASSERT(config);
        int exit_code = parse_peer(argc - 1, argv + 1, config);
        if (exit_code == EXIT_DONE)
            exit_code = change(folder, config->name, config);
        cwb_configs_free(config, 1);
        return exit_code;
    }
    fprintf(stderr, "causeway: peers does not know this (see causeway peers --help)\n");
    return EXIT_WRONG;
}

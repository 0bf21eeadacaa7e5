/*
 * cableway peers add, remove: changes of the list of peers, a file that the running bridge reads
 * again by itself. Each is made under the file's lock (folder.h).
 */
#include "broker/bridge/cli/peers.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/bridge/cli/command.h"
#include "broker/bridge/cli/list.h"
#include "broker/bridge/cli/slurm.h"
#include "broker/bridge/tls/folder.h"
#include "broker/bridge/link/peer_list.h"
#include "ipc/cableway.h"

static void help(void) {
    puts(
        "Usage: cableway peers [list] [--json]\n"
        "       cableway peers show [NAME] [--json]\n"
        "       cableway peers wait [NAME] [--timeout SECONDS]\n"
        "       cableway peers add NAME [HOST:PORT] --key FINGERPRINT | --ca\n"
        "                          [--read PATTERN]... [--write PATTERN]...\n"
        "       cableway peers remove NAME\n"
        "       cableway peers from-slurm [--port N] [--read PATTERN]... [--write PATTERN]...\n"
        "The nodes that this one knows, kept in the file `peers` in $CABLEWAY_NODE_DIR, else\n"
        "~/.config/cableway; a running broker's bridge reads it again by itself. Without an\n"
        "address a peer must connect to this node. Nothing may be read or written by a peer that\n"
        "no pattern allows (one of the shell's, * matches a / too), but arrays that were put with\n"
        "remote=\"read\". `add` replaces what was known under the name. With --key a peer is "
        "known\n"
        "by that key alone, with --ca by a certificate for its name that this node's CA signed.\n"
        "`from-slurm`, once in a job, makes keys for all its nodes and each known to the others.");
}

static int parse_peer(int argc, char **argv, struct cwb_peer_config *config) {
    static const struct option names[] = {
        {"key", required_argument, NULL, 'k'},
        {"ca", no_argument, NULL, 'c'},
        {"read", required_argument, NULL, 'r'},
        {"write", required_argument, NULL, 'w'},
        {NULL, 0, NULL, 0},
    };
    int found;
    while ((found = getopt_long(argc, argv, "", names, NULL)) >= 0) {
        const char *name = found == 'k'   ? "key"
                           : found == 'c' ? "key"
                           : found == 'r' ? "read"
                           : found == 'w' ? "write"
                                          : NULL;
        if (!name)
            return EXIT_WRONG;
        if (cwb_config_set(config, name, found == 'c' ? "ca" : optarg, "peers add") != 0)
            return cwb_complain(EXIT_WRONG);
    }
    if (argc - optind < 1 || argc - optind > 2 || !cw_node_valid(argv[optind])) {
        fprintf(stderr,
                "cableway: peers add takes NAME and perhaps HOST:PORT; a name is 1 to %u of "
                "A-Z a-z 0-9 _ . - (see cableway peers --help)\n",
                CW_NODE_MAX);
        return EXIT_WRONG;
    }
    strcpy(config->name, argv[optind]);
    if (argc - optind == 2 && cwb_config_set(config, "address", argv[optind + 1], "peers add") != 0)
        return cwb_complain(EXIT_WRONG);
    if (!cwb_config_known(config)) {
        fprintf(stderr,
                "cableway: the key of %s is missing: --key FINGERPRINT, as `cableway "
                "keygen` printed it there; or --ca\n",
                config->name);
        return EXIT_WRONG;
    }
    return EXIT_DONE;
}

/* Of the list as it is: takes a name out, and puts config (if any) in. The lock is held. */
static int change_locked(const char *folder, const char *name,
                         const struct cwb_peer_config *config) {
    struct cwb_peer_config *configs;
    uint32_t count, kept = 0;
    int exit_code = EXIT_DONE;
    if (cwb_peers_read(folder, &configs, &count) != 0)
        return cwb_complain(EXIT_FAILED);
    struct cwb_peer_config *changed = calloc(count + 1, sizeof *changed);
    CW_ASSERT(changed);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(configs[i].name, name) != 0)
            changed[kept++] = configs[i];
    if (!config && kept == count) {
        fprintf(stderr, "cableway: there is no peer \"%s\"\n", name);
        exit_code = EXIT_NO_PEER;
    } else if (kept == CWB_PEERS_MAX && config) {
        fprintf(stderr,
                "cableway: there are %u peers, and can be no more (CWB_PEERS_MAX): "
                "`cableway peers remove` those that are not needed\n",
                kept);
        exit_code = EXIT_FAILED;
    } else {
        if (config)
            changed[kept++] = *config;
        if (cwb_peers_write(folder, changed, kept) != 0)
            exit_code = cwb_complain(EXIT_FAILED);
    }
    free(changed); /* what stands in it is the two lists' */
    cwb_configs_free(configs, count);
    return exit_code;
}

static int change(const char *folder, const char *name, const struct cwb_peer_config *config) {
    if (cwb_folder_make(folder) != 0)
        return cwb_complain(EXIT_FAILED);
    int lock = cwb_folder_lock(folder);
    if (lock < 0)
        return cwb_complain(EXIT_FAILED);
    int exit_code = change_locked(folder, name, config);
    close(lock);
    return exit_code;
}

int cwb_command_peers(int argc, char **argv) {
    char folder[PATH_MAX];
    cwb_node_folder(folder);
    const char *what = argc > 1 ? argv[1] : "list";
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0) {
            help();
            return EXIT_DONE;
        }
    if (argc == 1 || strcmp(what, "--json") == 0)
        return cwb_command_list(argc, argv);
    if (strcmp(what, "list") == 0 || strcmp(what, "show") == 0)
        return cwb_command_list(argc - 1, argv + 1);
    if (strcmp(what, "wait") == 0)
        return cwb_command_wait(argc - 1, argv + 1);
    if (strcmp(what, "from-slurm") == 0)
        return cwb_command_slurm(argc - 1, argv + 1);
    if (strcmp(what, "remove") == 0 && argc == 3)
        return change(folder, argv[2], NULL);
    if (strcmp(what, "add") == 0) {
        struct cwb_peer_config *config = calloc(1, sizeof *config);
        CW_ASSERT(config);
        if (argc > 2 && cw_node_valid(argv[2])) /* for sentences */
            strcpy(config->name, argv[2]);
        int exit_code = parse_peer(argc - 1, argv + 1, config);
        if (exit_code == EXIT_DONE)
            exit_code = change(folder, config->name, config);
        cwb_configs_free(config, 1);
        return exit_code;
    }
    fprintf(stderr, "cableway: peers does not know this (see cableway peers --help)\n");
    return EXIT_WRONG;
}

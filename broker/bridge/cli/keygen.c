/*
 * cableway keygen: this node's key, an authority, and what it signs. See keys.h for the files.
 */
#include "broker/bridge/cli/keygen.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/bridge/cli/command.h"
#include "broker/bridge/tls/folder.h"
#include "broker/bridge/tls/keys.h"
#include "broker/bridge/tls/tls.h"
#include "ipc/cableway.h"

#define DAYS_MOST 36500

struct wish {
    const char *node, *sign; /* NULL: not given */
    bool show, ca;
    int days;
};

static void help(void) {
    puts("Usage: cableway keygen [--node NAME]\n"
         "       cableway keygen --show\n"
         "       cableway keygen --ca\n"
         "       cableway keygen --sign FILE [--node NAME] [--days N]\n"
         "Makes this node's key and certificate (node.key and node.crt in\n"
         "$CABLEWAY_NODE_DIR, else ~/.config/cableway) and prints the key's fingerprint,\n"
         "which the other nodes pin with `cableway peers add --key`.\n\n"
         "  --node NAME  the name in the certificate (default: the host's)\n"
         "  --show       make nothing, print the fingerprint of the key that is there\n"
         "  --ca         make an authority instead: ca.key, which stays here, and ca.crt, which\n"
         "               goes into the folder of every node that is to go by it\n"
         "  --sign FILE  sign another node's node.crt (-: from stdin) with ca.key and print the\n"
         "               new certificate, which takes its place on that node\n"
         "  --days N     how long that one is valid (default: 365)");
}

static int wrong(const char *what) {
    fprintf(stderr, "cableway: %s (see cableway keygen --help)\n", what);
    return EXIT_WRONG;
}

static int parse(int argc, char **argv, struct wish *wish, bool *done) {
    static const struct option names[] = {
        {"node", required_argument, NULL, 'n'},
        {"show", no_argument, NULL, 's'},
        {"ca", no_argument, NULL, 'c'},
        {"sign", required_argument, NULL, 'S'},
        {"days", required_argument, NULL, 'd'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    char *end;
    int found;
    while ((found = getopt_long(argc, argv, "", names, NULL)) >= 0) {
        switch (found) {
        case 'n':
            wish->node = optarg;
            break;
        case 's':
            wish->show = true;
            break;
        case 'c':
            wish->ca = true;
            break;
        case 'S':
            wish->sign = optarg;
            break;
        case 'd':
            wish->days = (int)strtol(optarg, &end, 10);
            if (*end || end == optarg || wish->days < 1 || wish->days > DAYS_MOST)
                return wrong("--days is a number from 1 to 36500");
            break;
        case 'h':
            help();
            *done = true;
            return EXIT_DONE;
        default:
            return EXIT_WRONG;
        }
    }
    if (optind < argc)
        return wrong("keygen takes no arguments");
    if (wish->show + wish->ca + (wish->sign != NULL) > 1)
        return wrong("--show, --ca and --sign are three things");
    if (wish->days && !wish->sign)
        return wrong("--days goes with --sign");
    if (wish->node && (wish->show || wish->ca))
        return wrong("--node does not go with --show or --ca");
    if (wish->node && !cw_node_valid(wish->node)) {
        fprintf(stderr, "cableway: \"%s\" is no name of a node: 1 to %u of A-Z a-z 0-9 _ . -\n",
                wish->node, CW_NODE_MAX);
        return EXIT_WRONG;
    }
    return EXIT_DONE;
}

static int print_own_key(const char *folder) {
    struct cwb_tls *tls;
    char text[CWB_PRINT_TEXT];
    if (cwb_tls_new(folder, 0, &tls) != 0)
        return cwb_complain(EXIT_FAILED);
    cwb_print_text(cwb_tls_print(tls), text);
    puts(text);
    cwb_tls_free(tls);
    return EXIT_DONE;
}

static int sign(const char *folder, const struct wish *wish) {
    bool from_stdin = strcmp(wish->sign, "-") == 0;
    char node[64], until[64] = "";
    FILE *in = from_stdin ? stdin : fopen(wish->sign, "re");
    if (!in) {
        fprintf(stderr, "cableway: %s: %s\n", wish->sign, strerror(errno));
        return EXIT_FAILED;
    }
    int code = cwb_keygen_sign(folder, in, stdout, wish->node,
                               wish->days ? wish->days : CWB_SIGN_DAYS, node, until);
    if (!from_stdin)
        fclose(in);
    if (code)
        return cwb_complain(EXIT_FAILED);
    fprintf(stderr, "cableway: signed for the node %s, until %s; it becomes node.crt there\n", node,
            until);
    return EXIT_DONE;
}

int cwb_command_keygen(int argc, char **argv) {
    struct wish wish = {.node = NULL};
    char folder[PATH_MAX], host[256] = "node";
    bool done = false;
    int exit_code = parse(argc, argv, &wish, &done);
    if (exit_code != EXIT_DONE || done)
        return exit_code;
    cwb_node_folder(folder);
    if (wish.show)
        return print_own_key(folder);
    if (wish.sign)
        return sign(folder, &wish);
    if (wish.ca) {
        if (cwb_keygen_ca(folder) != 0)
            return cwb_complain(EXIT_FAILED);
        fprintf(stderr,
                "cableway: made %s/ca.key, which stays here, and ca.crt, which goes to the nodes\n",
                folder);
        return EXIT_DONE;
    }
    if (!wish.node) {
        (void)gethostname(host, sizeof host - 1);
        host[strcspn(host, ".")] = 0;
        wish.node = cw_node_valid(host) ? host : "node";
    }
    if (cwb_keygen(folder, wish.node) != 0)
        return cwb_complain(EXIT_FAILED);
    fprintf(stderr, "cableway: made %s/node.key and node.crt; this is the key's fingerprint:\n",
            folder);
    return print_own_key(folder);
}

/*
 * cableway peers from-slurm: once in a job, makes all its nodes known to each other.
 *
 * SLURM says which nodes (SLURM_JOB_NODELIST), which job (SLURM_JOB_ID) and, on each node, which
 * one it is (SLURMD_NODENAME). The user's folder lies in a home that the nodes share; there a
 * folder job-ID is made. All nodes have in it, once, the job's authority (ca.crt) and all nodes as
 * peers that are known by that authority (peers); each node has a folder of its own with its key
 * and its certificate. A bridge that finds these variables and that folder uses it (folder.c), so
 * that nothing else is to be set. A node whose peers are changed by hand has a file of its own from
 * then on.
 *
 * The authority's key is never written: it signs for all nodes here and is forgotten, so no other
 * certificate of this job can ever be made. Who can read the user's home can be any of these nodes,
 * as with keys for ssh there.
 *
 * The folder is built under a name of its own and then renamed: it is there whole or not at all. Of
 * several calls in one job the first counts and the others find it there. One that is killed leaves
 * its half under .job-ID.PID, which nobody looks at. A job that SLURM started again (it may have
 * other nodes) has another folder.
 */
#include "broker/bridge/cli/slurm.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/bridge/tls/certificate.h"
#include "broker/bridge/cli/command.h"
#include "broker/bridge/tls/folder.h"
#include "broker/bridge/tls/keys.h"
#include "broker/bridge/cli/nodelist.h"
#include "broker/bridge/link/peer_list.h"
#include "ipc/cableway.h"

#define PORT "7400"

struct job {
    char **nodes;
    uint32_t count;
    struct cwb_peer_config *peers; /* of each node, as the others see it */
    char folder[PATH_MAX], fresh[PATH_MAX];
};

static int parse(int argc, char **argv, struct cwb_peer_config *rights, const char **port) {
    static const struct option names[] = {
        {"port", required_argument, NULL, 'p'},
        {"read", required_argument, NULL, 'r'},
        {"write", required_argument, NULL, 'w'},
        {NULL, 0, NULL, 0},
    };
    int found;
    *port = PORT;
    while ((found = getopt_long(argc, argv, "", names, NULL)) >= 0) {
        if (found == 'p')
            *port = optarg;
        else if (found != 'r' && found != 'w')
            return EXIT_WRONG;
        else if (cwb_config_set(rights, found == 'r' ? "read" : "write", optarg, "from-slurm") != 0)
            return cwb_complain(EXIT_WRONG);
    }
    if (optind < argc || strspn(*port, "0123456789") != strlen(*port) || atoi(*port) < 1 ||
        atoi(*port) > 65535) {
        fputs("cableway: peers from-slurm takes --port (1 to 65535), --read and --write\n", stderr);
        return EXIT_WRONG;
    }
    return EXIT_DONE;
}

/* What SLURM says. */
static int look(struct job *job) {
    const char *list = secure_getenv("SLURM_JOB_NODELIST"),
               *node = secure_getenv("SLURMD_NODENAME");
    char user[PATH_MAX], name[CWB_JOB_NAME], other[CWB_JOB_NAME + 32];
    if (!list)
        list = secure_getenv("SLURM_NODELIST");
    if (!list || !*list || !cwb_job_name(name)) {
        cw_fail(-EINVAL, "SLURM_JOB_ID and SLURM_JOB_NODELIST are not set: this is for a job of "
                         "SLURM (sbatch, salloc)");
        return -EINVAL;
    }
    int code = cwb_nodelist_expand(list, CWB_PEERS_MAX, &job->nodes, &job->count);
    bool found = !node;
    for (uint32_t i = 0; code == 0 && i < job->count; i++)
        found = found || strcmp(job->nodes[i], node) == 0;
    if (code == 0 && !found)
        code =
            cw_fail(-EINVAL, "this node, %.100s (SLURMD_NODENAME), is not one of the job's: %.300s",
                    node, list);
    snprintf(other, sizeof other, ".%s.%d", name, (int)getpid());
    cwb_user_folder(user);
    if (code == 0)
        code = cwb_folder_make(user);
    if (code == 0)
        code = cwb_folder_path(user, name, job->folder);
    if (code == 0)
        code = cwb_folder_path(user, other, job->fresh);
    return code;
}

static int describe(struct job *job, const struct cwb_peer_config *rights, const char *port) {
    char address[CW_ADDRESS_MAX + 1];
    int code = 0;
    job->peers = calloc(job->count, sizeof *job->peers);
    CW_ASSERT(job->peers);
    for (uint32_t i = 0; i < job->count && code == 0; i++) {
        struct cwb_peer_config *peer = &job->peers[i];
        strcpy(peer->name, job->nodes[i]);
        peer->by_ca = true;
        peer->read = rights->read; /* shared: freed with rights alone */
        peer->write = rights->write;
        snprintf(address, sizeof address, "%s:%s", job->nodes[i], port);
        code = cwb_config_set(peer, "address", address, "from-slurm");
    }
    return code;
}

/* One node's folder. */
static int make_node(const struct job *job, uint32_t which, X509 *ca, EVP_PKEY *ca_key) {
    char folder[PATH_MAX];
    int code = cwb_folder_path(job->fresh, job->nodes[which], folder);
    EVP_PKEY *key = cwb_certificate_key();
    X509 *certificate =
        key ? cwb_certificate_new(key, job->nodes[which], ca, ca_key, CWB_SIGN_DAYS) : NULL;
    if (!certificate)
        code = cw_fail(-EIO, "OpenSSL could not make a key and certificate");
    if (code == 0)
        code = cwb_keygen_write(folder, "node", key, certificate);
    X509_free(certificate);
    EVP_PKEY_free(key);
    return code;
}

static int make_all(const struct job *job) {
    EVP_PKEY *key = cwb_certificate_key();
    X509 *ca = key ? cwb_certificate_new(key, NULL, NULL, NULL, CWB_SIGN_DAYS) : NULL;
    int code = ca ? cwb_folder_make(job->fresh)
                  : cw_fail(-EIO, "OpenSSL could not make a key and certificate");
    if (code == 0)
        code = cwb_keygen_write(job->fresh, "ca", NULL, ca);
    if (code == 0)
        code = cwb_peers_write(job->fresh, job->peers, job->count);
    for (uint32_t i = 0; i < job->count && code == 0; i++)
        code = make_node(job, i, ca, key);
    X509_free(ca);
    EVP_PKEY_free(key); /* overwritten by OpenSSL */
    return code;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where) {
    (void)status, (void)kind, (void)where;
    return remove(path);
}

static int make(struct job *job, bool *was_there) {
    int code = make_all(job);
    if (code == 0 && rename(job->fresh, job->folder) == 0)
        return 0;
    if (code == 0 && (errno == EEXIST || errno == ENOTEMPTY))
        *was_there = true; /* another call was quicker */
    else if (code == 0)
        code = cw_fail(-errno, "making %.300s failed: %m", job->folder);
    char why[CW_DETAIL_MAX];
    snprintf(why, sizeof why, "%s", cw_detail());
    (void)nftw(job->fresh, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return code ? cw_fail(code, "%s", why) : 0;
}

int cwb_command_slurm(int argc, char **argv) {
    struct cwb_peer_config *rights = calloc(1, sizeof *rights);
    struct job job = {.count = 0};
    const char *port;
    CW_ASSERT(rights);
    int exit_code = parse(argc, argv, rights, &port);
    if (exit_code == EXIT_DONE) {
        int code = look(&job);
        bool was_there = code == 0 && access(job.folder, F_OK) == 0;
        if (code == 0 && !was_there)
            code = describe(&job, rights, port);
        if (code == 0 && !was_there)
            code = make(&job, &was_there);
        if (code)
            exit_code = cwb_complain(EXIT_FAILED);
        else {
            fprintf(stderr,
                    was_there ? "cableway: %s was made already, and stays as it is\n"
                              : "cableway: made %s; remove it when the job is done\n",
                    job.folder);
            puts(job.folder);
        }
    }
    free(job.peers);
    cwb_nodelist_free(job.nodes, job.count);
    cwb_configs_free(rights, 1);
    return exit_code;
}

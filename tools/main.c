/*
 * cableway: the command line. This table and one file a subcommand are all there is.
 *
 * One thread, short-lived. SIGPIPE is ignored: a reader that goes away ends the output, not the
 * program.
 */
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tools/cli.h"

static const struct cli_command commands[] = {
    {"broker", "[ARGUMENTS...]",
     "Run the broker, cablewayd, with these arguments (see cablewayd(1)).", NULL, CLI_RAW_ARGUMENTS,
     0, -1, cmd_broker},
    {"status", "", "Show the broker, its clients, counters and limits.",
     "Reads the monitor page alone and asks nobody: works also when the broker is stopped or "
     "hangs,\n"
     "and then says so.\n",
     CLI_JSON, 0, 0, cmd_status},
    {"top", "", "Show clients, arrays, Pools, Queues, memory and routes, again each second.",
     "Reads shared memory alone and asks nobody: works also when the broker is stopped or has "
     "died. On a\n"
     "terminal h lists the keys. --once and --json show rates if -d says between which two "
     "looks.\n",
     CLI_JSON | CLI_ONCE | CLI_DELAY, 0, 0, cmd_top},
    {"metrics", "", "Print figures as OpenMetrics text, for Prometheus.",
     "Reads shared memory alone and asks nobody: works also when the broker is stopped or hangs. "
     "If none\n"
     "runs, the one figure is cableway_up 0, and the exit code 0.\n",
     0, 0, 0, cmd_metrics},
    {"exporter", "[--listen ADDRESS:PORT] [--host NAME]... [--all-users]",
     "Serve these figures and a live page by HTTP, on 127.0.0.1.", NULL, CLI_RAW_ARGUMENTS, 0, -1,
     cmd_exporter},
    {"leaks", "", "Find memory that perhaps nobody needs, and say what to do about it.",
     "Arrays that nobody has open, handles that nobody opened, memory that idle processes keep,\n"
     "earlier versions of trees that are still open, and memory whose maker has ended.\n",
     CLI_JSON | CLI_OLDER, 0, 0, cmd_leaks},
    {"limit", "show [NAME] | set NAME VALUE",
     "Show the broker's limits, and set one while it runs.",
     "A VALUE in bytes may end in KiB, MiB, GiB or TiB. It holds until the broker ends; for good "
     "it "
     "is set\n"
     "in cableway.conf (see cablewayd(1)). A limit that is lower than what is in use takes nothing "
     "away.\n",
     CLI_JSON, 1, 3, cmd_limit},
    {"log", "", "Show the errors of the broker: each kind once, how often and when.",
     "Reads the monitor page alone and asks nobody: works also when the broker is stopped or "
     "hangs, and\n"
     "where its log left lines out.\n",
     CLI_JSON, 0, 0, cmd_log},
    {"trace", "", "Write the last events of all processes as a file for Perfetto.",
     "Puts, first gets, waits, copies, tasks and wake-ups, by process and thread: open the JSON "
     "at\n"
     "https://ui.perfetto.dev. What is under way is there, too. Reads the processes' own memory "
     "and "
     "asks\n"
     "nobody: works also when the broker is stopped or has died.\n",
     CLI_SECONDS | CLI_OUTPUT, 0, 0, cmd_trace},
    {"ls", "[PREFIX]", "List names: device, shape, dtype, size, owner, holders, age.", NULL,
     CLI_JSON | CLI_NAMESPACE | CLI_ALL | CLI_OLD, 0, 1, cmd_ls},
    {"stat", "NAME", "Show all that is known about one name.",
     "Of a tree that is its version, devices and meta, too; --leaves lists what it consists of.\n",
     CLI_JSON | CLI_NAMESPACE | CLI_LEAVES, 1, 1, cmd_stat},
    {"put", "NAME FILE.npy", "Put the array of a file under a name (FILE - reads stdin).",
     "The file may be a .safetensors file of one array, too.\n"
     "Starts a broker if none runs. A taken name is replaced, at once and whole. A name lives as "
     "long\n"
     "as the user has a client, and a minute more, unless --keep is given.\n",
     CLI_JSON | CLI_NAMESPACE | CLI_KEEP | CLI_NO_REPLACE, 2, 2, cmd_put},
    {"load", "NAME PATH", "Put the weights of a model under a name: a .safetensors file or folder.",
     "PATH may be the index of a folder, too. Of many processes that load the same at once one "
     "reads\n"
     "the files, and if they are loaded already nobody does. Starts a broker if none runs. A name "
     "that\n"
     "means other files is an error unless --replace is given. --device may be repeated: a tree "
     "for "
     "each\n"
     "GPU, NAME/cuda:N, and the files are read once.\n",
     CLI_JSON | CLI_NAMESPACE | CLI_KEEP | CLI_DEVICE | CLI_REPLACE | CLI_TIMEOUT_OPTION, 2, 2,
     cmd_load},
    {"verify", "NAME [PATH]", "Is a tree still what was published, and what lies in these files?",
     "Reads all of it. Says which tensors differ, and then exits with 8.\n",
     CLI_JSON | CLI_NAMESPACE, 1, 2, cmd_verify},
    {"get", "NAME FILE", "Write an array or a tree into a file (FILE - writes stdout).",
     "C and Fortran order are kept; strided views are written in C order. A FILE whose name ends "
     "in\n"
     ".safetensors gets that format, in C order: it has dtypes that .npy lacks, such as "
     "bfloat16.\n"
     "A tree needs such a FILE, which then has each leaf under its path.\n",
     CLI_JSON | CLI_NAMESPACE, 2, 2, cmd_get},
    {"cp", "NAME NAME", "Copy an array to another name; //NODE/NAME are other nodes'.",
     "A tree gets another name for the same memory, which never changes; nothing is copied.\n"
     "Without --device a copy on this node lies where its original does, and what comes from "
     "another\n"
     "node or goes there comes into host memory. A GPU of another node is counted as that node "
     "does.\n",
     CLI_NAMESPACE | CLI_KEEP | CLI_NO_REPLACE | CLI_DEVICE, 2, 2, cmd_cp},
    {"rm", "NAME...", "Remove names. Who holds an array keeps it.", NULL, CLI_NAMESPACE, 1, -1,
     cmd_rm},
    {"wait", "NAME", "Wait until a name is there.",
     "Waits also for a broker to be started. With --after, waits until a tree has a later "
     "version;\n"
     "a new broker counts from 1 again.\n",
     CLI_NAMESPACE | CLI_TIMEOUT_OPTION | CLI_AFTER, 1, 1, cmd_wait},
    {"run", "PROGRAM [ARGUMENTS...]", "Run many processes of a program, each with its rank.",
     "A PROGRAM that ends in .py is run by $CABLEWAY_PYTHON, else by the first python in PATH. "
     "Each\n"
     "process has CABLEWAY_GROUP, CABLEWAY_RANK and CABLEWAY_SIZE in its environment: Python's\n"
     "`cableway.Group()` joins by these. If one fails, the others are ended, and its exit code is "
     "that of\n"
     "the command (128 and the number of the signal, if it was killed). See cableway-run(1).\n",
     CLI_PROCESSES | CLI_TAG | CLI_KEEP_GOING | CLI_GRACE, 1, -1, cmd_run},
    {"stop", "", "Stop the broker; says first what would be lost.",
     "Asks on a terminal. Without one, and with something to lose, --yes is needed.\n",
     CLI_JSON | CLI_YES | CLI_FORCE, 0, 0, cmd_stop},
    {"topo", "", "Show the GPUs, the routes between them, and their measured speed.",
     "Takes some memory on each GPU while it measures. Bytes are those that clients had copied "
     "when\n"
     "the broker last heard of them.\n",
     CLI_JSON, 0, 0, cmd_topo},
    {"keygen", "[ARGUMENTS...]", "Make this node's key, with which other nodes know it.", NULL,
     CLI_RAW_ARGUMENTS, 0, -1, cmd_keygen},
    {"peers", "[list|show|wait|add|remove|from-slurm] [ARGUMENTS...]",
     "Other nodes: list, add, remove them.", NULL, CLI_RAW_ARGUMENTS, 0, -1, cmd_peers},
    {"doctor", "", "Try whether it works here; say what is missing, and the remedy.",
     "Puts and gets an array, for which it starts a broker if none runs.\n", CLI_JSON, 0, 0,
     cmd_doctor},
    {"completion", "bash|zsh", "Print a script that completes this command's words at Tab.",
     "For this shell: eval \"$(cableway completion bash)\", in zsh after compinit. For every "
     "shell, put\n"
     "that line into ~/.bashrc or ~/.zshrc.\n",
     CLI_FIRST_ENDS, 1, -1, cmd_completion},
};
#define COMMANDS (sizeof commands / sizeof *commands)

const struct cli_command *cli_commands(size_t *count) {
    *count = COMMANDS;
    return commands;
}

static void print_help(void) {
    printf("Usage: cableway COMMAND [OPTIONS] [ARGUMENTS]\n\n"
           "Arrays shared by name between the processes of this machine, and of "
           "others.\n\nCommands:\n");
    for (size_t i = 0; i < COMMANDS; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    printf(
        "\n`cableway COMMAND --help` tells its options. `cableway --version` tells the version.\n\n"
        "Exit codes:\n"
        "  %d  done\n"
        "  %d  failed; for doctor: something needed is missing\n"
        "  %d  wrong usage\n"
        "  %d  no broker runs, or it was lost\n"
        "  %d  no such name, or its array is gone\n"
        "  %d  the timeout ran out\n"
        "  %d  the name is taken: put, cp with --no-replace; load, if it means something else\n"
        "  %d  a limit was reached, or no memory is left\n"
        "  %d  verify: tensors differ\n\n"
        "Environment:\n"
        "  CABLEWAY_DIR        folder of the socket (else $XDG_RUNTIME_DIR/cableway, else\n"
        "                      /tmp/cableway-UID)\n"
        "  CABLEWAY_NAMESPACE  the namespace\n"
        "  CABLEWAY_BROKER     the cablewayd to start\n"
        "  CABLEWAY_PYTHON     the python for .py files of `cableway run`, and for `exporter`\n",
        CLI_OK, CLI_FAILED, CLI_USAGE, CLI_NO_BROKER, CLI_NO_NAME, CLI_TIMEOUT, CLI_NAME_TAKEN,
        CLI_LIMIT, CLI_DIFFERS);
}

static const struct cli_command *find_command(const char *name) {
    for (size_t i = 0; i < COMMANDS; i++) {
        if (!strcmp(commands[i].name, name))
            return &commands[i];
    }
    return NULL;
}

static int run(int argc, char **argv) {
    if (argc < 2)
        return cli_error(CLI_USAGE, "a command is missing (see cableway --help)");
    const char *name = argv[1];
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || (!strcmp(name, "help") && argc == 2)) {
        print_help();
        return CLI_OK;
    }
    if (!strcmp(name, "--version")) {
        printf("cableway %s\n", cw_version());
        return CLI_OK;
    }
    if (!strcmp(name, "help"))
        name = argv[2];
    const struct cli_command *command = find_command(name);
    if (!command && name[0] == '-')
        return cli_error(CLI_USAGE, "no such option: %s (see cableway --help)", name);
    if (!command)
        return cli_error(CLI_USAGE, "no such command: %s (see cableway --help)", name);
    static char help_word[] = "--help";
    char *help[] = {argv[1], help_word, NULL};
    struct cli cli;
    bool asked_help = name != argv[1];
    int code = cli_parse(command, asked_help ? 2 : argc - 1, asked_help ? help : argv + 1, &cli);
    return code >= 0 ? code : command->run(&cli);
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    /* For the widths of characters alone: numbers are written the same everywhere. */
    setlocale(LC_CTYPE, "C.UTF-8");
    return cli_finish(run(argc, argv));
}

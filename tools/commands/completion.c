/*
 * cableway completion: scripts for bash and zsh, which at each Tab ask `cableway completion
 * candidates WORD...` what the last word may become. That ends by itself after a quarter of a
 * second, without a word.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/completion/completion.h"

/* bash splits words at = and :, so they are put together again, and of a candidate only what stands
 * behind the last of these takes the place of the word. */
static const char bash_script[] =
    "# bash completion for cableway and cablewayd: the command itself knows the words.\n"
    "_cableway() {\n"
    "    local rest=${COMP_LINE:0:COMP_POINT} part=\"\" blanks word cut program i\n"
    "    local -a words=()\n"
    "    COMPREPLY=()\n"
    "    for ((i = 0; i <= COMP_CWORD; i++)); do\n"
    "        blanks=${rest%%[! $'\\t']*}\n"
    "        rest=${rest#\"$blanks\"}\n"
    "        part=${COMP_WORDS[i]}\n"
    "        ((i == COMP_CWORD)) && part=$rest # up to the cursor\n"
    "        rest=${rest#\"$part\"}\n"
    "        if [[ -n $blanks || $i -eq 0 ]]; then words+=(\"$part\"); else "
    "words[${#words[@]} - 1]+=$part; fi\n"
    "    done\n"
    "    cut=${words[${#words[@]} - 1]}\n"
    "    [[ $part == [:=]* ]] && part=${part##*[:=]}\n"
    "    cut=${cut%\"$part\"}\n"
    "    words=(\"${words[@]//[\\\"\\'\\\\]/}\")\n"
    "    program=${words[0]/#\\~\\//$HOME/}\n"
    "    [[ ${program##*/} == cableway ]] || program=cableway\n"
    "    while IFS=$'\\t' read -r word _; do\n"
    "        if [[ -z $word ]]; then\n"
    "            compopt -o default 2>/dev/null\n"
    "            continue\n"
    "        fi\n"
    "        [[ $word == */ ]] && compopt -o nospace 2>/dev/null\n"
    "        word=${word#\"$cut\"}\n"
    "        printf -v word %q \"$word\"\n"
    "        COMPREPLY+=(\"$word\")\n"
    "    done < <(command \"$program\" completion candidates \"${words[@]}\" 2>/dev/null)\n"
    "}\n"
    "complete -F _cableway cableway cablewayd\n";

static const char zsh_script[] =
    "#compdef cableway cablewayd\n"
    "# zsh completion for cableway and cablewayd: the command itself knows the words.\n"
    "_cableway() {\n"
    "    local line word program=${(Q)words[1]} files=\n"
    "    local -a ends folders shown\n"
    "    program=${program/#\\~\\//$HOME/}\n"
    "    [[ ${program:t} == cableway ]] || program=cableway\n"
    "    for line in \"${(@f)$(command $program completion candidates \\\n"
    "        \"${(@Q)words[1,CURRENT-1]}\" \"${(Q)PREFIX}\" 2>/dev/null)}\"; do\n"
    "        word=${line%%$'\\t'*}\n"
    "        if [[ -z $word ]]; then\n"
    "            [[ $line == $'\\t' ]] && files=1\n"
    "        elif [[ $word == */ ]]; then\n"
    "            folders+=(\"$word\")\n"
    "        else\n"
    "            ends+=(\"$word\")\n"
    "            shown+=(\"$word${${line#*$'\\t'}:+  -- ${line#*$'\\t'}}\")\n"
    "        fi\n"
    "    done\n"
    "    if [[ -n ${(M)shown:#*  -- *} ]]; then\n"
    "        compadd -l -d shown -a ends\n"
    "    else\n"
    "        compadd -a ends\n"
    "    fi\n"
    "    compadd -S '' -a folders\n"
    "    if [[ -n $files ]]; then _files; fi\n"
    "}\n"
    "if [[ ${funcstack[1]} == _cableway ]]; then\n"
    "    _cableway \"$@\"\n"
    "else\n"
    "    compdef _cableway cableway cablewayd\n"
    "fi\n";

static void give_up(int number) {
    (void)number;
    _exit(CLI_OK); /* nothing was printed yet: it stands in stdio's buffer */
}

static int print_candidates(const struct cli *cli) {
    static char buffer[1 << 20];
    struct itimerval limit = {.it_value.tv_usec = COMPLETION_LIMIT_NS / 1000};
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    signal(SIGALRM, give_up);
    setitimer(ITIMER_REAL, &limit, NULL);
    if (cli->count >= 3) /* "candidates", the program's name, the word under the cursor */
        completion_print(cli->count - 1, cli->arguments + 1);
    return CLI_OK;
}

int cmd_completion(const struct cli *cli) {
    const char *shell = cli->arguments[0];
    if (!strcmp(shell, "candidates"))
        return print_candidates(cli);
    if (cli->count == 1 && !strcmp(shell, "bash")) {
        fputs(bash_script, stdout);
        return CLI_OK;
    }
    if (cli->count == 1 && !strcmp(shell, "zsh")) {
        fputs(zsh_script, stdout);
        return CLI_OK;
    }
    return cli_error(CLI_USAGE, "completion: there is a script for bash and one for zsh; usage: "
                                "cableway completion bash|zsh");
}

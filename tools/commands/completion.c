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

/* The line is taken apart by its quotes, not by bash's words: those are split at @, : and =, too.
 * Of a candidate only what stands behind the last of these, or behind a quote that is still open,
 * takes the place of what was typed, so only that is told, with what this quote needs escaped. */
static const char bash_script[] =
    "# bash completion for cableway and cablewayd: the command itself knows the words.\n"
    "_cableway() {\n"
    "    local line=${COMP_LINE:0:COMP_POINT} text=\"\" began=\"\" quote=\"\" open=0 cut=0\n"
    "    local program word told i c\n"
    "    local -a words=()\n"
    "    COMPREPLY=()\n"
    "    for ((i = 0; i < ${#line}; i++)); do\n"
    "        c=${line:i:1}\n"
    "        if [[ -n $quote ]]; then\n"
    "            if [[ $c == \"$quote\" ]]; then\n"
    "                quote=\"\"\n"
    "                continue\n"
    "            elif [[ $quote$c == '\"\\' && ${line:i+1:1} == [\\\"\\\\\\$\\`] ]]; then\n"
    "                c=${line:i+1:1} i=$((i + 1))\n"
    "            elif [[ $quote$c == '\"\\' && i+1 -eq ${#line} ]]; then\n"
    "                continue # the character behind it is still to come\n"
    "            fi\n"
    "            text+=$c\n"
    "        elif [[ $c == [\\\"\\'] ]]; then\n"
    "            quote=$c open=${#text} began=1\n"
    "        elif [[ $c == \\\\ ]]; then\n"
    "            text+=${line:i+1:1} began=1 i=$((i + 1))\n"
    "        elif [[ $c == [$' \\t\\n'] ]]; then\n"
    "            [[ -n $began ]] && words+=(\"$text\")\n"
    "            text=\"\" began=\"\" cut=0\n"
    "        else\n"
    "            # readline puts a candidate in the place of what stands behind the last of these, "
    "or\n"
    "            # behind the quote that is open\n"
    "            [[ $c == [@$] && $COMP_WORDBREAKS == *\"$c\"* ]] && cut=${#text}\n"
    "            text+=$c began=1\n"
    "            [[ $c != [@$] && $COMP_WORDBREAKS == *\"$c\"* ]] && cut=${#text}\n"
    "        fi\n"
    "    done\n"
    "    [[ -n $quote ]] && cut=$open\n"
    "    words+=(\"$text\")\n"
    "    program=${words[0]/#\\~\\//$HOME/}\n"
    "    [[ ${program##*/} == cableway ]] || program=cableway\n"
    "    while IFS= read -r line; do\n"
    "        word=${line%%$'\\t'*} told=${line#*$'\\t'}\n"
    "        if [[ -z $word ]]; then\n"
    "            if [[ $told == programs && $text == [!-]* && $text != */* ]]; then\n"
    "                while IFS= read -r word; do\n"
    "                    type -P -- \"$word\" >/dev/null && COMPREPLY+=(\"$word\")\n"
    "                done < <(compgen -c -- \"$text\" | sort -u)\n"
    "                while IFS= read -r word; do COMPREPLY+=(\"$word\"); done < <(compgen -f -- "
    "\"$text\")\n"
    "                compopt -o filenames 2>/dev/null\n"
    "            fi\n"
    "            compopt -o default 2>/dev/null\n"
    "            continue\n"
    "        fi\n"
    "        [[ $word == */ || $told == ... ]] && compopt -o nospace 2>/dev/null\n"
    "        word=${word:cut}\n"
    "        if [[ $quote == \\' ]]; then\n"
    "            word=${word//\\'/\\'\\\\\\'\\'}\n"
    "        elif [[ $quote == \\\" ]]; then\n"
    "            word=${word//\\\\/\\\\\\\\}\n"
    "            word=${word//\\\"/\\\\\\\"}\n"
    "            word=${word//\\$/\\\\\\$}\n"
    "            word=${word//\\`/\\\\\\`}\n"
    "            word=${word//!/$'\"\\'!\\'\"'} # which would stand for a line of the history\n"
    "        elif [[ -n $word ]]; then\n"
    "            printf -v word %q \"$word\"\n"
    "        fi\n"
    "        # readline closes the quote, but not behind such a one\n"
    "        [[ -n $quote && $word == *\"$quote\" ]] && word+=$quote\n"
    "        COMPREPLY+=(\"$word\")\n"
    "    done < <(command \"$program\" completion candidates \"${words[@]}\" 2>/dev/null)\n"
    "}\n"
    "complete -F _cableway cableway cablewayd\n";

static const char zsh_script[] =
    "#compdef cableway cablewayd\n"
    "# zsh completion for cableway and cablewayd: the command itself knows the words.\n"
    "_cableway() {\n"
    "    local line word program=${(Q)words[1]} begin=$PREFIX files=\n"
    "    local -a ends folders shown\n"
    "    case $compstate[quote] in\n"
    "    '') begin=${(Q)begin} ;;\n"
    "    \\\") begin=${(Q):-\\\"${begin%\\\\}\\\"} ;;\n"
    "    esac\n"
    "    program=${program/#\\~\\//$HOME/}\n"
    "    [[ ${program:t} == cableway ]] || program=cableway\n"
    "    for line in \"${(@f)$(command $program completion candidates \\\n"
    "        \"${(@Q)words[1,CURRENT-1]}\" \"$begin\" 2>/dev/null)}\"; do\n"
    "        word=${line%%$'\\t'*}\n"
    "        if [[ -z $word ]]; then\n"
    "            [[ -n $line ]] && files=${line#$'\\t'}.\n"
    "        elif [[ $word == */ || $line == *$'\\t'... ]]; then\n"
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
    "    [[ $files == programs. ]] && _command_names -e\n"
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

package manual

import "strings"

// CompleteCommand is the first argument when a completion script asks for words. The shell and the typed words follow it.
const CompleteCommand = "__complete"

// scripts are sourced by shells. They ask the program for words. Without an offer the shell completes file names. %p is the
// name of the program, and %f the same as part of a function name.
var scripts = map[string]string{
	"bash": `# bash completion of %p: source <(%p completion bash)
_%f() {
    local IFS=$'\n'
    COMPREPLY=($(%p __complete bash "${COMP_WORDS[@]:1:COMP_CWORD}"))
}
complete -o default -F _%f %p
`,
	"zsh": `#compdef %p
# zsh completion of %p: source <(%p completion zsh)
_%f() {
    local -a offers
    offers=("${(@f)$(%p __complete zsh "${(@)words[2,CURRENT]}")}")
    if [[ -n ${offers[1]} ]]; then
        _describe %p offers
    else
        _files
    fi
}
compdef _%f %p
`,
	"fish": `# fish completion of %p: %p completion fish | source
function __%f_offers
    set -l typed (commandline -opc)[2..-1]
    %p __complete fish $typed "$(commandline -ct)"
end
complete -c %p -e
complete -c %p -n 'test -n "$(__%f_offers)"' -f -a '(__%f_offers)'
`,
}

// CompletionScript returns the script of a shell: bash, zsh or fish. It returns "" for another shell.
func CompletionScript(program, shell string) string {
	return strings.NewReplacer("%p", program, "%f", strings.ReplaceAll(program, "-", "_")).Replace(scripts[shell])
}

// Complete answers a completion script. It returns a line for each word that may replace the last typed word, which may be
// "". The line has the help of the word in the form of the shell.
func Complete(root *Command, shell string, typed ...string) string {
	var answer strings.Builder
	now := ""
	if len(typed) > 0 {
		now = typed[len(typed)-1]
		typed = typed[:len(typed)-1]
	}
	for _, o := range listOffers(root, typed) {
		if !strings.HasPrefix(o.word, now) {
			continue
		}
		switch {
		case shell == "zsh" && o.help != "":
			answer.WriteString(o.word + ":" + o.help + "\n")
		case shell == "fish" && o.help != "":
			answer.WriteString(o.word + "\t" + o.help + "\n")
		default:
			answer.WriteString(o.word + "\n")
		}
	}
	return answer.String()
}

type offer struct{ word, help string }

// listOffers returns the words that may follow the typed words. It returns none where only the user or the file system knows
// them.
func listOffers(root *Command, typed []string) (list []offer) {
	at, last := root, ""
	for _, last = range typed {
		for _, child := range at.Children {
			if child.Name == last {
				at = child
				break
			}
		}
	}
	options := at.Flags
	if at.Default != nil {
		options = at.Default.Flags
	}
	for _, f := range options {
		if f.Value != "" && (last == "--"+f.Name || f.Short != "" && last == "-"+f.Short) {
			for _, value := range f.Values {
				list = append(list, offer{word: value})
			}
			return list
		}
	}
	for _, word := range at.Words {
		list = append(list, offer{word: word})
	}
	for _, child := range at.Children {
		list = append(list, offer{child.Name, child.Help})
	}
	for _, f := range options {
		list = append(list, offer{"--" + f.Name, f.Help})
	}
	return append(list, offer{"--help", "Show help."})
}

package manual

import "strings"

// Asked is the word after the program's name with which a completion script asks what may follow:
// the shell and the words that were typed come after it.
const Asked = "__complete"

// Scripts for shells to source. They ask the program, and leave what it has no offer for to the
// shell, which names files. %p is the program, %f its name as part of a function's.
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

// Completion is a script for a shell to source: bash, zsh or fish; "" for another one.
func Completion(program, shell string) string {
	return strings.NewReplacer("%p", program, "%f", strings.ReplaceAll(program, "-", "_")).Replace(scripts[shell])
}

// Complete answers a script: a line for each word that may stand in place of the last one of typed,
// which may be "", with its help in the shell's form.
func Complete(root *Command, shell string, typed ...string) string {
	var answer strings.Builder
	now := ""
	if len(typed) > 0 {
		now = typed[len(typed)-1]
		typed = typed[:len(typed)-1]
	}
	for _, o := range offers(root, typed) {
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

// offers are the words that may follow those typed; none where only the user or the file system
// knows them.
func offers(root *Command, typed []string) (list []offer) {
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

package manual

import (
	"fmt"
	"slices"
	"strings"
)

// Shells are the shells that Completion knows.
func Shells() []string { return []string{"bash", "zsh", "fish"} }

// Completion is a script for a shell to source, "" if the shell is not known.
func Completion(root *Command, shell string) string {
	switch shell {
	case "bash":
		return bash(root)
	case "zsh":
		return zsh(root)
	case "fish":
		return fish(root)
	}
	return ""
}

// identifier is the program's name as part of a function's name.
func identifier(name string) string { return "_" + strings.ReplaceAll(name, "-", "_") }

// quote is a word in single quotes, for bash and zsh.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// walk is the part that bash and zsh share: $at becomes the command that was typed so far.
func walk(root *Command) string {
	var known []string
	for _, c := range root.all()[1:] {
		known = append(known, quote(" "+c.Path()))
	}
	return "        case \"$at $word\" in\n            " + strings.Join(known, "|") + ") at=\"$at $word\" ;;\n        esac\n"
}

// values says what may follow a flag: "case" branches for "$at|$previous word".
func values(root *Command, of func(f Flag) string) string {
	var b strings.Builder
	for _, c := range root.all() {
		for _, f := range c.options() {
			if f.Value == "" {
				continue
			}
			patterns := []string{quote(prefix(c) + "|--" + f.Name)}
			if f.Short != "" {
				patterns = append(patterns, quote(prefix(c)+"|-"+f.Short))
			}
			fmt.Fprintf(&b, "        %s) %s; return ;;\n", strings.Join(patterns, "|"), of(f))
		}
	}
	return b.String()
}

func prefix(c *Command) string {
	if c.Path() == "" {
		return ""
	}
	return " " + c.Path()
}

func bash(root *Command) string {
	var words strings.Builder
	for _, c := range root.all() {
		list := slices.Clone(c.Words)
		for _, child := range c.Children {
			list = append(list, child.Name)
		}
		for _, f := range c.options() {
			list = append(list, "--"+f.Name)
		}
		fmt.Fprintf(&words, "        %s) words=%s ;;\n", quote(prefix(c)), quote(strings.Join(append(list, "--help"), " ")))
	}
	follow := values(root, func(f Flag) string {
		switch {
		case f.File:
			return `COMPREPLY=($(compgen -f -- "$now"))`
		case len(f.Values) > 0:
			return fmt.Sprintf(`COMPREPLY=($(compgen -W %s -- "$now"))`, quote(strings.Join(f.Values, " ")))
		}
		return "COMPREPLY=()"
	})
	return fmt.Sprintf(`# bash completion of %[1]s: source <(%[1]s completion bash)
%[2]s() {
    local now=${COMP_WORDS[COMP_CWORD]} at= word words i
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
%[3]s    done
    case "$at|${COMP_WORDS[COMP_CWORD-1]}" in
%[4]s    esac
    case "$at" in
%[5]s    esac
    COMPREPLY=($(compgen -W "$words" -- "$now"))
}
complete -o default -F %[2]s %[1]s
`, root.Name, identifier(root.Name), walk(root), follow, words.String())
}

// described is a word and its help as zsh's _describe wants it.
func described(word, help string) string {
	return quote(strings.ReplaceAll(word, ":", `\:`) + ":" + help)
}

func zsh(root *Command) string {
	var words strings.Builder
	for _, c := range root.all() {
		var list []string
		for _, word := range c.Words {
			list = append(list, quote(word))
		}
		for _, child := range c.Children {
			list = append(list, described(child.Name, child.Help))
		}
		for _, f := range c.options() {
			list = append(list, described("--"+f.Name, f.Help))
		}
		fmt.Fprintf(&words, "        %s) offers=(%s) ;;\n", quote(prefix(c)), strings.Join(append(list, described("--help", "Show help.")), " "))
	}
	follow := values(root, func(f Flag) string {
		switch {
		case f.File:
			return "_files"
		case len(f.Values) > 0:
			return "compadd -- " + strings.Join(f.Values, " ")
		}
		return "_message " + quote(f.Value)
	})
	return fmt.Sprintf(`#compdef %[1]s
# zsh completion of %[1]s: source <(%[1]s completion zsh)
%[2]s() {
    local at= word previous
    local -a typed offers
    typed=("${(@)words[2,CURRENT-1]}")
    previous=${typed[-1]}
    for word in "${typed[@]}"; do
%[3]s    done
    case "$at|$previous" in
%[4]s    esac
    case "$at" in
%[5]s    esac
    _describe %[6]s offers
}
compdef %[2]s %[1]s
`, root.Name, identifier(root.Name), walk(root), follow, words.String(), quote(root.Name))
}

// fishQuote is a word in single quotes, for fish.
func fishQuote(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(text) + "'"
}

func fish(root *Command) string {
	name, at := root.Name, identifier(root.Name)+"_at"
	var known []string
	for _, c := range root.all()[1:] {
		known = append(known, fishQuote(" "+c.Path()))
	}
	var b strings.Builder
	fmt.Fprintf(&b, `# fish completion of %[1]s: %[1]s completion fish | source
function %[2]s
    set -l path ''
    for word in (commandline -opc)[2..-1]
        if contains -- "$path $word" %[3]s
            set path "$path $word"
        end
    end
    test "$path" = "$argv[1]"
end
complete -c %[1]s -e
`, name, at, strings.Join(known, " "))
	for _, c := range root.all() {
		when := fishQuote(at + " '" + prefix(c) + "'")
		if len(c.Words) > 0 {
			fmt.Fprintf(&b, "complete -c %s -f -n %s -a %s\n", name, when, fishQuote(strings.Join(c.Words, " ")))
		}
		for _, child := range c.Children {
			fmt.Fprintf(&b, "complete -c %s -f -n %s -a %s -d %s\n", name, when, child.Name, fishQuote(child.Help))
		}
		for _, f := range c.options() {
			fmt.Fprintf(&b, "complete -c %s -n %s -l %s%s -d %s\n", name, when, f.Name, fishRest(f), fishQuote(f.Help))
		}
	}
	return b.String()
}

func fishRest(f Flag) (rest string) {
	if f.Short != "" {
		rest = " -s " + f.Short
	}
	switch {
	case f.File:
		return rest + " -r"
	case len(f.Values) > 0:
		return rest + " -x -a " + fishQuote(strings.Join(f.Values, " "))
	case f.Value != "":
		return rest + " -x"
	}
	return rest
}

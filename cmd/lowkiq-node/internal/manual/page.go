package manual

import (
	"fmt"
	"strings"
)

// Man is a manual page of section 1, for man -l.
func Man(root *Command, common string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"lowkiq\" \"User Commands\"\n.SH NAME\n%s \\- %s\n", strings.ToUpper(roff(root.Name)), roff(root.Name), roff(root.Help))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n.I command\n[flags]\n", roff(root.Name))
	b.WriteString(roffText(root.Detail))
	b.WriteString(".SH COMMANDS\n")
	for _, c := range root.all()[1:] {
		fmt.Fprintf(&b, ".SS %s\n%s\n", roff(root.Name+" "+synopsis(c)), roff(c.Help))
		b.WriteString(roffText(c.Detail))
		for _, f := range ownFlags(c) {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(f.spelled()), roff(f.text()))
		}
	}
	fmt.Fprintf(&b, ".SH EXIT STATUS\n%s", roffText(common))
	return b.String()
}

// synopsis is a command with its arguments.
func synopsis(c *Command) string {
	return strings.TrimSpace(c.Path() + " " + c.Usage)
}

// ownFlags are those of a command that does something by itself.
func ownFlags(c *Command) []Flag {
	if len(c.Children) > 0 {
		return nil
	}
	return c.Flags
}

// spelled is a flag as it is typed.
func (f Flag) spelled() string {
	text := "--" + f.Name
	if f.Value != "" {
		text += "=" + f.Value
	}
	if f.Short != "" {
		text = "-" + f.Short + ", " + text
	}
	return text
}

func (f Flag) text() string {
	if f.Env != "" {
		return f.Help + " (" + f.Env + ")"
	}
	return f.Help
}

// roff escapes a line for man: not every roff reads UTF-8.
func roff(text string) string {
	var b strings.Builder
	for _, r := range strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n", " ").Replace(text) {
		if r > 126 {
			fmt.Fprintf(&b, `\[u%04X]`, r)
			continue
		}
		b.WriteRune(r)
	}
	if text = b.String(); strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		return `\&` + text
	}
	return text
}

// roffText sets paragraphs, and examples as they are.
func roffText(text string) string {
	var b strings.Builder
	for _, part := range paragraphs(text) {
		if part.example {
			b.WriteString(".PP\n.nf\n")
			for line := range strings.SplitSeq(part.text, "\n") {
				b.WriteString("    " + roff(line) + "\n")
			}
			b.WriteString(".fi\n")
			continue
		}
		b.WriteString(".PP\n" + roff(part.text) + "\n")
	}
	return b.String()
}

// paragraph is a part of a text; examples are indented by four spaces there.
type paragraph struct {
	text    string
	example bool
}

func paragraphs(text string) (parts []paragraph) {
	for block := range strings.SplitSeq(text, "\n\n") {
		if strings.TrimSpace(block) == "" {
			continue
		}
		example := strings.HasPrefix(block, "    ")
		lines := strings.Split(strings.Trim(block, "\n"), "\n")
		for i := range lines {
			lines[i] = strings.TrimPrefix(lines[i], "    ")
		}
		parts = append(parts, paragraph{strings.Join(lines, "\n"), example})
	}
	return parts
}

// Markdown is a page with all commands.
func Markdown(root *Command, common string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n\nThis page is written by `%s man --markdown`.\n\n", root.Name, root.Help, root.Name)
	b.WriteString("| command | |\n|---|---|\n")
	for _, c := range root.Children {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", c.Name, c.Name, c.Help)
	}
	b.WriteString("\n" + markdownText(root.Name, common))
	for _, c := range root.all()[1:] {
		fmt.Fprintf(&b, "%s %s\n\n%s\n\n", strings.Repeat("#", 1+len(c.path)), c.Path(), c.Help)
		if len(c.Children) == 0 {
			fmt.Fprintf(&b, "`%s %s`\n\n", root.Name, synopsis(c))
		}
		b.WriteString(markdownText(root.Name, c.Detail))
		b.WriteString(markdownFlags(ownFlags(c)))
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

func markdownFlags(flags []Flag) string {
	if len(flags) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("| flag | |\n|---|---|\n")
	for _, f := range flags {
		fmt.Fprintf(&b, "| `%s` | %s |\n", strings.ReplaceAll(f.spelled(), "|", `\|`), strings.ReplaceAll(f.text(), "|", `\|`))
	}
	return b.String() + "\n"
}

func markdownText(program, text string) string {
	var b strings.Builder
	for _, part := range paragraphs(text) {
		switch {
		case part.example && strings.HasPrefix(part.text, program+" "):
			fmt.Fprintf(&b, "```sh\n%s\n```\n\n", part.text)
		case part.example:
			fmt.Fprintf(&b, "```\n%s\n```\n\n", part.text)
		case part.text == "Example:" || part.text == "Examples:":
		default:
			b.WriteString(part.text + "\n\n")
		}
	}
	return b.String()
}

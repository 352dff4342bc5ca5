package manual

import (
	"fmt"
	"strings"
)

// MarkdownPage returns a page with all commands. common is the end of every command's details. written is a line that says
// who writes the page.
func MarkdownPage(root *Command, common, written string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n\n%s\n\n", root.Name, root.Help, written)
	if len(root.Children) == 0 {
		b.WriteString(markdownText(root.Name, root.Detail))
		b.WriteString(markdownFlags(root.Flags))
		b.WriteString(markdownText(root.Name, common))
		return strings.TrimRight(b.String(), "\n") + "\n"
	}
	b.WriteString("| command | |\n|---|---|\n")
	for _, c := range root.Children {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", c.Name, c.Name, c.Help)
	}
	b.WriteString("\n" + markdownText(root.Name, common))
	for _, c := range root.flatten()[1:] {
		fmt.Fprintf(&b, "%s %s\n\n%s\n\n", strings.Repeat("#", 1+len(c.path)), c.Path(), c.Help)
		if len(c.Children) == 0 {
			fmt.Fprintf(&b, "`%s %s`\n\n", root.Name, synopsis(c))
		}
		b.WriteString(markdownText(root.Name, c.Detail))
		b.WriteString(markdownFlags(ownFlags(c)))
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// synopsis returns a command with its arguments.
func synopsis(c *Command) string {
	return strings.TrimSpace(c.Path() + " " + c.Usage)
}

// ownFlags returns the flags of a command that has no subcommands.
func ownFlags(c *Command) []Flag {
	if len(c.Children) > 0 {
		return nil
	}
	return c.Flags
}

// spelling returns a flag as it is typed.
func (f Flag) spelling() string {
	text := "--" + f.Name
	if f.Value != "" {
		text += "=" + f.Value
	}
	if f.Short != "" {
		text = "-" + f.Short + ", " + text
	}
	return text
}

func (f Flag) helpText() string {
	if f.Env != "" {
		return f.Help + " (" + f.Env + ")"
	}
	return f.Help
}

// markdownFlags returns a table of the flags, "" without flags.
func markdownFlags(flags []Flag) string {
	if len(flags) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("| flag | |\n|---|---|\n")
	for _, f := range flags {
		fmt.Fprintf(&b, "| `%s` | %s |\n", strings.ReplaceAll(f.spelling(), "|", `\|`), strings.ReplaceAll(f.helpText(), "|", `\|`))
	}
	return b.String() + "\n"
}

// markdownText turns a help text into Markdown. Examples become code blocks, so the headings above them are left out.
func markdownText(program, text string) string {
	var b strings.Builder
	for _, part := range splitParagraphs(text) {
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

// paragraph is a part of a text. An example is indented by four spaces there.
type paragraph struct {
	text    string
	example bool
}

// splitParagraphs splits a text at empty lines, and removes the indentation of examples.
func splitParagraphs(text string) (parts []paragraph) {
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

package main

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// suggested adds the nearest command to an error of parsing, where kong has none: below a
// command that means its list when none is named, as in "queues paus orders".
func suggested(app *kong.Application, args []string, err error) error {
	if strings.Contains(err.Error(), "did you mean") {
		return err
	}
	node := app.Node
	for _, word := range args {
		next := childOf(node, word)
		if next != nil {
			node = next
			continue
		}
		if near := nearest(node, word); near != "" {
			return fmt.Errorf("%w, did you mean %q?", err, near)
		}
		if node != app.Node && len(node.Children) > 0 && !strings.HasPrefix(word, "-") {
			return fmt.Errorf("%w; %s has the commands %s", err, node.Name, childrenOf(node))
		}
		return err
	}
	return err
}

func childrenOf(node *kong.Node) string {
	var names []string
	for _, child := range node.Children {
		names = append(names, child.Name)
	}
	return strings.Join(names, ", ")
}

func childOf(node *kong.Node, name string) *kong.Node {
	for _, child := range node.Children {
		if child.Name == name && !child.Hidden {
			return child
		}
	}
	return nil
}

// nearest is the child whose name is at most two letters off.
func nearest(node *kong.Node, word string) (name string) {
	best := 3
	for _, child := range node.Children {
		if d := distance(word, child.Name); d < best && d < len(word) && !child.Hidden {
			best, name = d, child.Name
		}
	}
	return name
}

// distance is how many letters must be put in, left out or replaced (Levenshtein).
func distance(x, y string) int {
	row := make([]int, len(y)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(x) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(y) {
			cost := diagonal
			if x[i] != y[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(y)]
}

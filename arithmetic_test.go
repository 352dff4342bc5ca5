package lowkiq_test

import (
	"go/constant"
	"go/token"
	"go/types"
	"regexp"
	"strings"
	"testing"
)

// calculation is a line of a plan, such as "memory   7,200,000 x 304   = 2,188,800,000".
var calculation = regexp.MustCompile(`(?m)^\S.*?\s{2,}([0-9(][0-9.,x+/() ]*?)\s+= ([0-9.,]+)$`)

// checkCalculations returns the number of calculations in a text, and the lines that are wrong.
func checkCalculations(text string) (count int, wrong []string) {
	number := func(expression string) constant.Value {
		expression = strings.NewReplacer(",", "", "x", "*").Replace(expression)
		value, err := types.Eval(token.NewFileSet(), nil, token.NoPos, expression)
		if err != nil {
			return constant.MakeUnknown()
		}
		return constant.ToFloat(value.Value)
	}
	for _, found := range calculation.FindAllStringSubmatch(text, -1) {
		count++
		if left, right := number(found[1]), number(found[2]); left.Kind() == constant.Unknown || !constant.Compare(left, token.EQL, right) {
			wrong = append(wrong, found[0])
		}
	}
	return count, wrong
}

// The plans that documents calculate are right.
func TestDocumentedArithmetic(t *testing.T) {
	t.Parallel()
	for file, least := range map[string]int{"docs/capacity.md": 10, "docs/high-latency.md": 4} {
		count, wrong := checkCalculations(read(t, file))
		if count < least || len(wrong) > 0 {
			t.Errorf("%s: got %d calculations, want at least %d; wrong are %q", file, count, least, wrong)
		}
	}
	count, wrong := checkCalculations("calls   2,000 x 0.05 / 1 = 100\nshards   5 x (50 + 1)   = 256\n")
	if count != 2 || len(wrong) != 1 {
		t.Errorf("got %d calculations with the wrong %q, want two, the second wrong", count, wrong)
	}
}

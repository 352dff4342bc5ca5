package manual

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/cmd/internal/config"
)

// fromVariable matches the end of the parser's error about a value that comes from an environment variable.
var fromVariable = regexp.MustCompile(` \(from envar (\w+)=.*\)$`)

// ExplainMistake says what a flag or an argument must be. The parser names the types of Go instead.
func ExplainMistake(err error) error {
	text := strings.Replace(err.Error(), ` must be one of "",`, " must be one of ", 1) // "" means that the flag is not given
	variable := ""
	if found := fromVariable.FindStringSubmatch(text); found != nil {
		text, variable = strings.TrimSuffix(text, found[0]), found[1]
	}
	place, reason, _ := strings.Cut(text, ": ")
	kind, got, ok := strings.Cut(strings.TrimPrefix(reason, "expected "), " but got ")
	level, slog := strings.CutPrefix(reason, "slog: level string ")
	if variable != "" {
		place = variable
	}
	switch {
	case slog:
		return mustBe(place, level, "debug, info, warn or error")
	case !ok || !strings.HasPrefix(reason, "expected "):
		if text != err.Error() && variable == "" {
			return errors.New(text)
		}
		return err
	case strings.HasPrefix(got, `"EOL"`):
		return fmt.Errorf("%s needs a value, as in %s=VALUE", place, place)
	case strings.Contains(got, "; perhaps try "):
		_, try, _ := strings.Cut(got, "; perhaps try ")
		return fmt.Errorf("%s needs a value; a value that begins with - is written %s", place, strings.TrimSuffix(try, "?"))
	case strings.Contains(kind, "int"):
		return mustBe(place, got, "a whole number")
	case strings.Contains(kind, "float"):
		return mustBe(place, got, "a number")
	case kind == "duration":
		return mustBe(place, got, "a duration with a unit, as in 10s or 2h")
	}
	return err
}

// mustBe returns the error of a value. got begins with the value in quotes.
func mustBe(place, got, want string) error {
	value, err := strconv.QuotedPrefix(got)
	if err == nil {
		value, err = strconv.Unquote(value)
	}
	if err != nil {
		value = got
	}
	return fmt.Errorf("%s is %s; it must be %s", place, value, want)
}

// CheckEmpty returns an error if a flag or an argument was given with an empty text. That is mostly a variable of a script that
// is not set. The command would take the flag for missing, and ask for a path without the argument.
func CheckEmpty(ctx *kong.Context) error {
	for _, part := range ctx.Path {
		// A command that distinguishes an empty text from none has a pointer there.
		switch {
		case part.Flag != nil && isEmptyText(part.Flag.Target):
			return fmt.Errorf("--%s is empty; it must have a value, or be left out", part.Flag.Name)
		case part.Positional != nil && isEmptyText(part.Positional.Target) && part.Positional.Required:
			return fmt.Errorf("<%s> is empty; it must have a value", part.Positional.Name)
		case part.Positional != nil && isEmptyText(part.Positional.Target):
			return fmt.Errorf("<%s> is empty; it must have a value, or be left out", part.Positional.Name)
		}
	}
	return nil
}

func isEmptyText(v reflect.Value) bool { return v.Kind() == reflect.String && v.Len() == 0 }

// DropEmptyVariables removes empty LOWKIQ_* variables from the environment of the process. Empty means not set, as in
// configurations, and the parser would take it for a value.
func DropEmptyVariables() {
	for _, line := range os.Environ() {
		if name, value, _ := strings.Cut(line, "="); value == "" && strings.HasPrefix(name, config.Prefix) {
			_ = os.Unsetenv(name) // it fails for impossible names only
		}
	}
}

package queue

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// producerAPI has everything that a program that pushes can use of this package. It is kept small, so that a newcomer
// reads it in a minute, and since each name is a promise. What nodes need belongs to package protocol.
var producerAPI = []string{
	"Open", "Config",
	"Client", "Client.Check", "Client.Close", "Client.Protocol",
	"Client.Register", "Client.Queue", "Client.SetRules", "Client.Events",
	"Client.Push", "Client.Call", "Client.Calls", "Client.Reply",
	"Queue", "Queue.Push", "Queue.Protocol",
	"Result", "Called", "DefaultKeep", "MaxKeep",
	"Typed", "NewTyped", "Typed.Push", "Typed.PushAll", "TypedPush", "Target",
	"PushError", "PushError.Error", "PushError.Unwrap",
	"PushRules", "Codec", "Middleware", "Pusher",
	"Transient",
	"Workflow", "WorkflowJob", "WorkflowStatus",
	"Client.StartWorkflow", "Client.AddToWorkflow", "Client.CloseWorkflow", "Client.CancelWorkflow", "Client.Workflow", "Client.Workflows",
	"ErrWorkflow", "ErrWorkflowTooLarge", "ErrWorkflowExists", "ErrWorkflowUnknown", "ErrWorkflowClosed",
	"ErrClosed", "ErrCodec", "ErrDamaged", "ErrID", "ErrPayloadSize", "ErrPerformAt", "ErrReplyTo", "ErrScore",
	"ErrTooManyBytes", "ErrTooManyPayloads", "ErrUnsent",
}

func TestAPIIsSmall(t *testing.T) {
	t.Parallel()
	got := exported(t)
	want := slices.Sorted(slices.Values(producerAPI))
	for _, name := range got {
		if !slices.Contains(want, name) {
			t.Errorf("%s is exported: does a program that only pushes need it? If so, add it to producerAPI", name)
		}
	}
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("%s is missing", name)
		}
	}
}

// exported returns the exported names of this package, and Type.Method for methods, in order.
func exported(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	add := func(id *ast.Ident, of string) {
		if id.IsExported() {
			names = append(names, of+id.Name)
		}
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range syntax.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				add(d.Name, receiver(d))
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.TypeSpec:
						add(s.Name, "")
					case *ast.ValueSpec:
						for _, id := range s.Names {
							add(id, "")
						}
					}
				}
			}
		}
	}
	slices.Sort(names)
	return names
}

// receiver returns the receiver's type and a dot, "" for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	of := d.Recv.List[0].Type
	for {
		switch t := of.(type) {
		case *ast.StarExpr:
			of = t.X
		case *ast.IndexExpr:
			of = t.X
		case *ast.Ident:
			return t.Name + "."
		}
	}
}

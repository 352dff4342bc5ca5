package redisdb

import (
	"reflect"
	"testing"

	"github.com/redis/go-redis/v9"
)

// TestExportedTypesNameNoClient walks all types that exported types name (see Client).
func TestExportedTypesNameNoClient(t *testing.T) {
	t.Parallel()
	if !namesClient(reflect.TypeFor[struct{ c redis.UniversalClient }](), map[reflect.Type]bool{}) {
		t.Error("a type that names a client is not found")
	}
	for _, exported := range []reflect.Type{reflect.TypeFor[*DB](), reflect.TypeFor[*Subscription](), reflect.TypeFor[*Script](), reflect.TypeFor[*Call]()} {
		if namesClient(exported, map[reflect.Type]bool{}) {
			t.Errorf("%s names a client of go-redis", exported)
		}
	}
}

// namesClient reports whether a type is a client of go-redis, or names one in a field, a method or an argument.
func namesClient(t reflect.Type, seen map[reflect.Type]bool) bool {
	if t == reflect.TypeFor[redis.Client]() {
		return true
	}
	if seen[t] {
		return false
	}
	seen[t] = true
	for i := range t.NumMethod() {
		if namesClient(t.Method(i).Type, seen) {
			return true
		}
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Chan, reflect.Map:
		return namesClient(t.Elem(), seen) || t.Kind() == reflect.Map && namesClient(t.Key(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if namesClient(t.Field(i).Type, seen) {
				return true
			}
		}
	case reflect.Func:
		for i := range t.NumIn() {
			if namesClient(t.In(i), seen) {
				return true
			}
		}
		for i := range t.NumOut() {
			if namesClient(t.Out(i), seen) {
				return true
			}
		}
	}
	return false
}

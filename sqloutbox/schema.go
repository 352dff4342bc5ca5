package sqloutbox

import _ "embed"

// Dialect is the language of a database.
type Dialect int

// The dialects of [Schema].
const (
	PostgreSQL Dialect = iota + 1 // 11 or later
	SQLite                        // 3.35 or later
)

//go:embed postgresql.sql
var postgresql string

//go:embed sqlite.sql
var sqlite string

// Schema returns the statements that create the outbox of a database, for a migration or a call of
// DB.Exec. They may be repeated. All names begin with lowkiq_outbox. Schema returns "" for an unknown dialect.
func Schema(d Dialect) string {
	switch d {
	case PostgreSQL:
		return postgresql
	case SQLite:
		return sqlite
	}
	return ""
}

package introspection

import "path/filepath"

// TablesPath is the HTTP path, on the debug socket, of the names of the agent's tables.
// A table is below it under its name: as text, or with ?o=json as JSON.
const TablesPath = "/debug/tables"

// HandoverPath is the HTTP path, on the debug socket, at which POST writes the checkpoint of
// AWS's daemon.
const HandoverPath = "/handover"

// DebugSocket is the path of the agent's debug socket, which only root can open: beside
// the socket that the plugin calls.
func DebugSocket(socket string) string { return filepath.Join(filepath.Dir(socket), "debug.sock") }

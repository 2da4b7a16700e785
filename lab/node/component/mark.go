package component

// MarkName is the environment variable of every process of a lab. Its value is the lab's
// name, by which lab/sweep finds the lab's processes after a crash.
const MarkName = "TRUNKLINE_LAB_PROCESS"

// Mark returns the environment entry of a lab's processes.
func Mark(lab string) string { return MarkName + "=" + lab }

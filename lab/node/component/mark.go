package component

// MarkName is the environment variable that every process of a lab carries, with
// the lab's name as value: lab/sweep knows its own by it, after any crash.
const MarkName = "TRUNKLINE_LAB_PROCESS"

// Mark is the environment entry of a lab's processes.
func Mark(lab string) string { return MarkName + "=" + lab }

// Package drift has what the reports of external changes have in common, and how long to
// leave a change that another program makes again each time. Pure.
package drift

import (
	"fmt"
	"strings"
	"time"
)

// Standing is how long a difference that cannot be repaired must last before it is
// reported: a pod's link is deleted with its namespace shortly before its DEL comes, and
// no ADD, DEL or set-up of an interface takes as long.
const Standing = 10 * time.Second

// Summary joins the first few of a list and counts the rest.
func Summary(list []string) string {
	const most = 3
	if len(list) <= most {
		return strings.Join(list, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(list[:most], "; "), len(list)-most)
}

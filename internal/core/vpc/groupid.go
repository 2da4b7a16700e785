package vpc

import "regexp"

// groupID: EC2 made ids of eight digits until 2018.
var groupID = regexp.MustCompile(`^sg-([0-9a-f]{8}|[0-9a-f]{17})$`)

// Valid reports whether g has the form of a security group's id.
func (g SecurityGroupID) Valid() bool { return groupID.MatchString(string(g)) }

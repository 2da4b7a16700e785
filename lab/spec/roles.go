package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/sim/iam"
)

// Role is an IAM role for instances.
type Role struct {
	Policies []Policy `json:"policies"`
}

// Policy is an IAM policy: a JSON file, or a document in lab.yaml itself.
type Policy struct {
	// Name in error messages of IAM; default: the file's name, or policy1, policy2, …
	Name string `json:"name,omitempty"`
	// File is relative to the directory of lab.yaml.
	File     string         `json:"file,omitempty"`
	Document map[string]any `json:"document,omitempty"`

	content []byte // of File, once Load has read it
}

// RoleController is the name of the controller's role, which service accounts assume.
const RoleController = "trunkline-controller"

// roleName is IAM's format of role names. Source: IAM API reference, CreateRole.
var roleName = regexp.MustCompile(`^[\w+=,.@-]{1,64}$`)

// readPolicies reads the policies' files. dir is the directory of lab.yaml.
func (s *Spec) readPolicies(dir string) error {
	var p problems
	for _, name := range slices.Sorted(maps.Keys(s.Roles)) {
		for i := range s.Roles[name].Policies {
			policy := &s.Roles[name].Policies[i]
			if policy.File == "" {
				continue
			}
			path := policy.File
			if !filepath.IsAbs(path) {
				path = filepath.Join(dir, path)
			}
			var err error
			if policy.content, err = os.ReadFile(path); err != nil {
				p.add(policyField(name, i)+".file", policy.File, "%v", errors.Unwrap(err))
			}
		}
	}
	return p.err()
}

func policyField(role string, index int) string {
	return fmt.Sprintf("roles.%s.policies[%d]", role, index)
}

// roles validates the file's roles and returns them as IAM has them, in the order of their
// names.
func roles(p *problems, s Spec) []iam.Role {
	var out []iam.Role
	for _, name := range slices.Sorted(maps.Keys(s.Roles)) {
		field := "roles." + name
		switch {
		case s.Cloud == CloudNone:
			p.add(field, "", "a lab without a cloud has no IAM roles (cloud: %s)", CloudNone)
		case !roleName.MatchString(name):
			p.add("roles", name, "must be the name of an IAM role: 1 to 64 letters, digits and +=,.@-_")
		case name == RoleController:
			p.add(field, "", "the role of Trunkline's controller, which no instance has; choose another name")
		case len(s.Roles[name].Policies) == 0:
			p.add(field+".policies", "", "must not be empty; to allow nothing, deny every action")
		}
		role := iam.Role{Name: name, Instances: true, Policies: map[string][]byte{}}
		for i, policy := range s.Roles[name].Policies {
			field := policyField(name, i)
			text, ok := policy.text(p, field)
			if !ok {
				continue
			}
			key := policy.name(i)
			if _, twice := role.Policies[key]; twice {
				p.add(field+".name", key, "already the name of another policy of this role")
			}
			if _, err := iam.ParsePolicy(key, text); err != nil {
				p.add(field, "", "%v", err)
			}
			role.Policies[key] = text
		}
		out = append(out, role)
	}
	return out
}

func (p Policy) name(index int) string {
	switch {
	case p.Name != "":
		return p.Name
	case p.File != "":
		return strings.TrimSuffix(filepath.Base(p.File), filepath.Ext(p.File))
	}
	return fmt.Sprintf("policy%d", index+1)
}

// text returns the policy's JSON. It reports a problem and returns false if there is none.
func (p Policy) text(problems *problems, field string) ([]byte, bool) {
	switch {
	case (p.File == "") == (p.Document == nil):
		problems.add(field, "", "must have either a file or a document")
		return nil, false
	case p.File != "" && p.content == nil:
		problems.add(field+".file", p.File, "is read only for a lab.yaml on disk")
		return nil, false
	case p.File != "":
		return bytes.TrimSpace(p.content), true
	}
	text, err := json.Marshal(p.Document)
	if err != nil {
		problems.add(field+".document", "", "%v", err)
	}
	return text, err == nil
}

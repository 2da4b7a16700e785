package spec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const readOnlyPolicy = `{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "ec2:Describe*", "Resource": "*"}}`

func TestPoliciesAreReadFromFilesBesideTheLabAndFromTheLabItself(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lab.yaml")
	for name, text := range map[string]string{
		"reader.json": readOnlyPolicy,
		"lab.yaml": `
roles:
  reader: {policies: [{file: reader.json}, {document: ` + readOnlyPolicy + `}]}
nodes: [{role: reader}, {}]`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Roles[0]; len(r.Roles) != 1 || !got.Instances || string(got.Policies["reader"]) != readOnlyPolicy || len(got.Policies["policy2"]) == 0 {
		t.Errorf("roles %+v", r.Roles)
	}
	if a, b := r.Cloud.Instances[0].Role, r.Cloud.Instances[1].Role; a != "reader" || b != DefaultRole {
		t.Errorf("the nodes have the roles %s and %s", a, b)
	}
	if err := os.Remove(filepath.Join(dir, "reader.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), `roles.reader.policies[0].file: "reader.json": no such file`) {
		t.Errorf("without the file: %v", err)
	}
}

package kubetest

import (
	"net/http"
	"strings"
	"testing"
)

func TestADeletedNamespaceHasNoObjectsAndNoneIsCreatedInIt(t *testing.T) {
	s := New(t)
	create := func() int {
		t.Helper()
		answer, err := http.Post(s.REST().Host+namespaces+"/test/pods", "application/json", strings.NewReader(`{"metadata": {"generateName": "p"}}`))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		return answer.StatusCode
	}
	namespace := map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "test"}}
	s.Put(namespaces, namespace)
	if got := create(); got != http.StatusCreated {
		t.Errorf("in a namespace: %d", got)
	}
	s.Delete(namespaces, "test")
	if got := create(); got != http.StatusForbidden {
		t.Errorf("in a deleted namespace: %d", got)
	}
	s.Put(namespaces, namespace)
	if got := create(); got != http.StatusCreated {
		t.Errorf("in one that was made again: %d", got)
	}
	if left := s.Keys("/api/v1/pods"); len(left) != 1 {
		t.Errorf("after its namespace was deleted and made again with one pod there are %v", left)
	}
}

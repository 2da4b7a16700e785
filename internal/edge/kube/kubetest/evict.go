package kubetest

import "net/http"

// evictions is the sub-resource of pods by which they are evicted.
const evictions = "eviction"

// evict deletes a pod, unless the request is for another one of its name. RefuseNext with 429 is what a
// PodDisruptionBudget does.
func evict(s *Server, w http.ResponseWriter, t target, body, pod object) {
	if uid := body.text("deleteOptions", "preconditions", "uid"); uid != "" && uid != pod.text("metadata", "uid") {
		fail(w, http.StatusConflict, "Conflict", "the pod has another uid")
		return
	}
	s.remove(t.resource, t.key())
	answer(w, http.StatusCreated, object{"kind": "Status", "apiVersion": "v1", "status": "Success"})
}

package kubetest

// discovery is the document at a path of discovery: the groups that clients of tests look for. The
// product looks for none.
func discovery(path string) any {
	const group, version = "vpcresources.k8s.aws", "v1beta1"
	at := map[string]any{"groupVersion": group + "/" + version, "version": version}
	switch path {
	case "/api":
		return map[string]any{"kind": "APIVersions", "apiVersion": "v1", "versions": []string{"v1"}}
	case "/apis":
		return map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": []any{
			map[string]any{"name": group, "versions": []any{at}, "preferredVersion": at},
		}}
	case "/apis/" + group + "/" + version:
		return map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group + "/" + version, "resources": []any{
			map[string]any{"name": "securitygrouppolicies", "kind": "SecurityGroupPolicy", "namespaced": true, "verbs": []string{"get", "list", "watch"}},
		}}
	}
	return nil
}

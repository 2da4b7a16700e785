package controlplane

import (
	"encoding/base64"
	"fmt"

	"sigs.k8s.io/yaml"
)

// Kubeconfig returns a kubeconfig with one cluster, user and context, all with this name,
// and with embedded certificates. caPEM is the certificate of the cluster's CA.
func Kubeconfig(name, server string, caPEM []byte, user KeyPair) ([]byte, error) {
	b64 := base64.StdEncoding.EncodeToString
	out, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": name,
		"clusters": []any{map[string]any{"name": name, "cluster": map[string]any{
			"server": server, "certificate-authority-data": b64(caPEM),
		}}},
		"users": []any{map[string]any{"name": name, "user": map[string]any{
			"client-certificate-data": b64(user.Cert), "client-key-data": b64(user.Key),
		}}},
		"contexts": []any{map[string]any{"name": name, "context": map[string]any{
			"cluster": name, "user": name,
		}}},
	})
	if err != nil {
		return nil, fmt.Errorf("render kubeconfig %s: %w", name, err)
	}
	return out, nil
}

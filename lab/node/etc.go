package node

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

// etc returns the files of the node's /etc that are not bind-mounted from the machine.
func (c Config) etc() map[string]string {
	host := c.Instance.Hostname()
	short, domain, _ := strings.Cut(host, ".")
	passwd, group := c.image().Accounts()
	return map[string]string{
		"hostname":    host + "\n",
		"hosts":       fmt.Sprintf("127.0.0.1 localhost\n::1 localhost\n%s %s %s\n", c.Instance.Address, host, short),
		"resolv.conf": fmt.Sprintf("search %s\nnameserver %s\noptions timeout:2 attempts:5\n", domain, c.Instance.Resolver),
		"machine-id":  machineID(c) + "\n",
		"passwd":      "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n" + passwd,
		"group":       "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n" + group,
		"shadow":      "root:*:::::::\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n" +
			"networks: files\nprotocols: files\nservices: files\n",
		"crictl.yaml": "runtime-endpoint: unix://" + containerdSocket + "\n",
	}
}

// machineID returns an ID that is stable for an instance and unique, like the one that
// systemd creates at the first boot.
func machineID(c Config) string {
	id := strings.TrimPrefix(string(c.Instance.ID), "i-") + fmt.Sprintf("%x", c.Instance.MAC[:])
	id = strings.ToLower(id)
	return (id + strings.Repeat("0", 32))[:32]
}

// copied returns the files of the machine's /etc that are copied to a node, if they exist.
func copied() []string {
	return []string{"ld.so.cache", "ld.so.conf", "protocols", "services", "localtime", "gai.conf", "ethertypes"}
}

// writeEtc writes the files and links of the root.
func (r rootFS) writeEtc(root string) error {
	dir := filepath.Join(root, "etc")
	files := map[string][]byte{}
	for name, text := range r.config.etc() {
		files[name] = []byte(text)
	}
	for _, name := range copied() {
		if b, err := os.ReadFile(filepath.Join("/etc", name)); err == nil {
			files[name] = b
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return fmt.Errorf("write /etc/%s of node: %w", name, err)
		}
	}
	links := map[string]string{"etc/mtab": "/proc/self/mounts"}
	if err := r.config.writeFiles(root); err != nil {
		return err
	}
	if _, ok := r.config.image().Files["etc/os-release"]; !ok {
		links["etc/os-release"] = "../usr/lib/os-release"
	}
	maps.Copy(links, map[string]string{
		"dev/ptmx": "pts/ptmx", "dev/fd": "/proc/self/fd", "dev/stdin": "fd/0", "dev/stdout": "fd/1", "dev/stderr": "fd/2",
		"lab/bin/kubelet": "trunkline-kube", "lab/bin/kube-proxy": "trunkline-kube", "lab/bin/kubectl": "trunkline-kube",
		"lab/bin/" + runcWithoutLimits: "trunkline-lab",
	})
	for link, to := range links {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			return fmt.Errorf("link /%s of node: %w", link, err)
		}
	}
	return r.writeConf(filepath.Join(root, confDir))
}

package cli

import (
	"fmt"

	"github.com/alecthomas/kong"
)

const rootExamples = `Examples:
  trunkline-lab demo                        start a lab and show its parts
  trunkline-lab up -f examples/one-node.yaml
  trunkline-lab kubectl get pods -A -o wide
  trunkline-lab down --all

Exit codes: 0 done, 1 failed, 2 invalid command line, 3 refused (unsuitable machine or lab.yaml),
4 lab not running, 130 interrupted; kubectl, trunkline, aws and exec return their program's.
With -o json, stdout is one JSON document, also on failure; progress goes to stderr.`

// examples returns the examples in each command's --help.
func examples() map[string]string {
	return map[string]string{
		"up": `  trunkline-lab up                           three m5.xlarge in three zones
  trunkline-lab up -f lab.yaml --name other  a second lab at the same time
  trunkline-lab up --nodes 1 --instance-type t3.medium
  trunkline-lab up --no-deploy               nodes without a network plugin
  trunkline-lab up -o json | jq -r .endpoints.kubeconfig`,
		"down": `  trunkline-lab down
  trunkline-lab down --all                   every lab, also crashed ones`,
		"status": `  trunkline-lab status
  trunkline-lab status -o json | jq '.nodes[].address'
  trunkline-lab status --wait 2m             until every node is Ready
  at=$(trunkline-lab status -o json | jq -r .endpoints.admin)
  curl -s "$at/calls?action=AttachNetworkInterface"     callers and responses
  curl -s -X PUT $at/faults -d '{"calls": [{"action": "*", "do": "lose-reply", "count": 3}]}'
  curl -s -X PUT $at/faults -d '{}'          remove all faults`,
		"demo": `  trunkline-lab demo
  trunkline-lab demo -f examples/one-node.yaml`,
		"exec": `  trunkline-lab exec node1                   a shell in the node
  trunkline-lab exec node1 -- ip rule
  trunkline-lab exec node2 -- nft list ruleset`,
		"logs": `  trunkline-lab logs                         list the logs
  trunkline-lab logs node1/kubelet -f
  trunkline-lab logs kube-apiserver
  trunkline-lab logs daemon`,
		"kubectl": `  trunkline-lab kubectl get nodes
  trunkline-lab kubectl get pods -A -o wide
  trunkline-lab kubectl -n trunkline-demo exec POD -- cat /etc/resolv.conf
  alias k='trunkline-lab kubectl'`,
		"trunkline": `  trunkline-lab trunkline status
  trunkline-lab trunkline show pool --why
  trunkline-lab trunkline connectivity test --test '^dns/'`,
		"aws": `  trunkline-lab aws ec2 describe-network-interfaces
  trunkline-lab aws ec2 describe-instances --output table`,
		"api-faults": `  trunkline-lab api-faults                   those in force
  trunkline-lab api-faults '[{"path": "/apis/vpcresources.k8s.aws", "do": "fail", "status": 503}]'
  trunkline-lab api-faults '[{"path": "/", "watch": true, "do": "expire"}]'    watches get 410
  trunkline-lab api-faults '[]'              remove all faults

The first fault that selects a request applies. Fields:
  path     beginning of the request's path; "/" is all
  user     such as system:serviceaccount:kube-system:trunkline-admission; default: all
  method   such as PATCH; default: all
  watch    true: watches only
  do       fail (with status), hang, disconnect, expire (watches: code 410),
           omit-group or stale-group (with group: discovery without it, or with stale versions of it)
  latency  such as 2s: delays the answer
Clients on the machine and the controllers of the control plane have no faults.`,
		"build": `  trunkline-lab build                        the first time takes 10 to 15 minutes on two cores`,
	}
}

// helpWithExamples prints kong's help and then the command's examples.
func helpWithExamples(o kong.HelpOptions, ctx *kong.Context) error {
	if err := kong.DefaultHelpPrinter(o, ctx); err != nil {
		return err
	}
	selected := ctx.Selected()
	if selected == nil {
		return nil
	}
	if text, ok := examples()[selected.Name]; ok {
		fmt.Fprintf(ctx.Stdout, "\nExamples:\n%s\n", text)
	}
	return nil
}

package workload

// Crowd is a Deployment of the workload, named crowd, with zero replicas, for a test or a
// benchmark to scale. The timeout of its readiness probe is long enough for a hundred
// starts on two cores.
const Crowd = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: crowd}
spec:
  replicas: 0
  selector: {matchLabels: {app: crowd}}
  template:
    metadata: {labels: {app: crowd}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: web
          image: trunkline.dev/workload:dev
          args: [serve]
          resources: {requests: {cpu: 1m, memory: 4Mi}}
          readinessProbe: {httpGet: {path: /healthz, port: 8080}, timeoutSeconds: 5, periodSeconds: 5}
`

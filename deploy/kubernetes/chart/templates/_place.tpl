{{- /* A namespace of sandboxes, with what the hub may do there and what its sandboxes may use. */}}
{{- define "cove.place" }}
{{- if .root.Values.sandboxes.createNamespace }}
# Sandboxes only: anyone who can create Pods here could impersonate one.
apiVersion: v1
kind: Namespace
metadata:
  name: {{ .namespace }}
  labels:
    pod-security.kubernetes.io/enforce: {{ ternary "baseline" "restricted" .root.Values.sandboxes.root }}
---
{{- end }}
# Exactly what the hub asks for, in the namespace of the sandboxes only.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ .name }}
  namespace: {{ .namespace }}
rules:
  - apiGroups: [""]
    resources: [pods]
    verbs: [get, list, watch, create, patch, delete]
  - apiGroups: [""]
    resources: [pods/log]
    verbs: [get]
  - apiGroups: [""]
    resources: [pods/resize]
    verbs: [patch]
  - apiGroups: [""]
    resources: [secrets]
    verbs: [get, list, create, patch, delete]
  - apiGroups: [""]
    resources: [persistentvolumeclaims]
    verbs: [get, list, create, delete]
  - apiGroups: [networking.k8s.io]
    resources: [networkpolicies]
    verbs: [get, create, update]
  {{- if .root.Values.sandboxes.snapshots.class }}
  - apiGroups: [snapshot.storage.k8s.io]
    resources: [volumesnapshots]
    verbs: [get, list, create, patch, delete]
  {{- end }}
  {{- if .lease }}
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    verbs: [get, create, update]
  {{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .name }}
  namespace: {{ .namespace }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .root.Release.Name }}
    namespace: {{ .root.Release.Namespace }}
{{- with .quota }}
---
apiVersion: v1
kind: ResourceQuota
metadata:
  name: {{ $.name }}
  namespace: {{ $.namespace }}
spec:
  hard:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- with .limits }}
---
apiVersion: v1
kind: LimitRange
metadata:
  name: {{ $.name }}
  namespace: {{ $.namespace }}
spec:
  limits:
    - {{- merge (dict "type" "Container") . | toYaml | nindent 6 }}
{{- end }}
{{- end }}

{{- define "cove.sandboxes" -}}{{ .Values.sandboxes.namespace | default (printf "%s-sandboxes" .Release.Name) }}{{- end }}
{{- define "cove.claim" -}}{{ .Values.persistence.existingClaim | default .Release.Name }}{{- end }}
{{- define "cove.accessMode" -}}{{ .Values.persistence.accessMode | default (ternary "ReadWriteMany" "ReadWriteOnce" (or (gt (int .Values.replicas) 1) .Values.autoscaling.enabled)) }}{{- end }}
{{- define "cove.check" -}}
{{- if and (or (gt (int .Values.replicas) 1) .Values.autoscaling.enabled) (not .Values.persistence.existingClaim) (ne (include "cove.accessMode" .) "ReadWriteMany") }}{{ fail "several replicas share their state: set persistence.accessMode to ReadWriteMany" }}{{ end }}
{{- if and (or .Values.ingress.enabled .Values.gateway.enabled) (not .Values.domain) }}{{ fail "ingress and gateway need a name: set domain" }}{{ end }}
{{- if and .Values.gateway.enabled (not .Values.gateway.name) }}{{ fail "set gateway.name to the Gateway that routes belong to" }}{{ end }}
{{- if and .Values.sandboxes.snapshots.endpoint (or (not .Values.sandboxes.snapshots.bucket) (not .Values.sandboxes.snapshots.secret)) }}{{ fail "snapshots need a bucket, and a Secret with the keys of its store: set sandboxes.snapshots.bucket and .secret" }}{{ end }}
{{- if and .Values.sandboxes.snapshots.class .Values.sandboxes.snapshots.endpoint }}{{ fail "snapshots are VolumeSnapshots or archives in a store: set sandboxes.snapshots.class or .endpoint, not both" }}{{ end }}
{{- if and .Values.sandboxes.snapshots.class (ne .Values.sandboxes.disk "persistent") }}{{ fail "VolumeSnapshots are those of persistent homes: set sandboxes.disk to persistent" }}{{ end }}
{{- range .Values.claims }}{{- if eq .namespace (include "cove.sandboxes" $) }}{{ fail "claims need another namespace than the sandboxes: users that can create claims must not have access to the Pods and Secrets of sandboxes" }}{{ end }}{{ end }}
{{- if eq (include "cove.sandboxes" .) .Release.Namespace }}{{ fail "sandboxes require a separate namespace: set sandboxes.namespace to another namespace than the hub's" }}{{ end }}
{{- end }}

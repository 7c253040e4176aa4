{{- define "checkpoint-guard.selector" -}}
app.kubernetes.io/name: checkpoint-guard
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "checkpoint-guard.labels" -}}
{{ include "checkpoint-guard.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "checkpoint-guard.name" -}}
{{- if contains "checkpoint-guard" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-checkpoint-guard{{ end }}
{{- end }}

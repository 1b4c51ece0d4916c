{{/* The API's pod; api.podTemplate is merged into it. */}}
{{- define "isosim.apiPod" -}}
{{- $name := include "isosim.fullname" . -}}
{{- $labels := printf "%s\napp.kubernetes.io/component: api" (include "isosim.selector" .) -}}
metadata:
  {{- include "isosim.marks" (dict "root" . "component" "api" "annotations" (include "isosim.checksum" . | fromYaml)) | nindent 2 }}
spec:
  serviceAccountName: {{ include "isosim.serviceAccount" . }}
  {{- include "isosim.isolation" . | nindent 2 }}
  {{- include "isosim.pullSecrets" . | nindent 2 }}
  securityContext: {{- include "isosim.podSecurityContext" . | nindent 4 }}
  # Time from SIGTERM: the delay in which load balancers remove the pod, the requests in flight, and a reserve for a load
  # in progress. No preStop hook: during drain.delay the server itself still answers requests, with /readyz at 503, so
  # that load balancers outside the cluster notice; a hook that only sleeps would not change /readyz.
  terminationGracePeriodSeconds: {{ add (ceil .Values.api.drain.delay) (ceil .Values.api.drain.seconds) 15 }}
  topologySpreadConstraints:
    - topologyKey: topology.kubernetes.io/zone
      maxSkew: 1
      whenUnsatisfiable: ScheduleAnyway  # a pod in a full zone is better than no pod
      labelSelector:
        matchLabels:
          {{- $labels | nindent 10 }}
      matchLabelKeys: [pod-template-hash]  # a rolling update counts only its own pods
  affinity:
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
        - weight: 100
          podAffinityTerm:
            topologyKey: kubernetes.io/hostname
            labelSelector:
              matchLabels:
                {{- $labels | nindent 16 }}
  {{- if .Values.remoteEncoder.url }}
  initContainers:
    # Without its encoder in the store a server exits, and Kubernetes would restart it after longer and longer pauses. A
    # running server does not re-read the encoder's address. So the pod waits until a worker has registered both.
    - name: await-encoder
      image: {{ include "isosim.image" (dict "root" . "target" .Values.device) }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: [python, -c]
      args:
        - |
          {{- .Files.Get "files/await_encoder.py" | nindent 10 }}
        - {{ .Values.encoder | quote }}
        - {{ .Values.remoteEncoder.url | quote }}
        - {{ include "isosim.encoderKeyFile" . | quote }}
      securityContext: {{- include "isosim.securityContext" . | nindent 8 }}
      # Requests equal limits, so that the pod stays in the QoS class Guaranteed if the server's are equal too.
      {{- $memory := ternary "192Mi" "64Mi" (ne .Values.modelStore.bucket.url "") }}
      resources: {requests: {cpu: 100m, memory: {{ $memory }}}, limits: {cpu: 100m, memory: {{ $memory }}}}
  {{- end }}
  containers:
    - name: api
      image: {{ include "isosim.image" (dict "root" . "target" .Values.device) }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      {{- if .Values.modelStore.ephemeral }}
      # The store is empty at each start.
      command: [isosim, serve, --init]
      {{- else }}
      command: [isosim, serve]
      {{- end }}
      securityContext: {{- include "isosim.securityContext" . | nindent 8 }}
      ports:
        - {name: http, containerPort: 8000, protocol: TCP}
        {{- with .Values.settings.metrics_port }}
        - {name: metrics, containerPort: {{ int . }}, protocol: TCP}
        {{- end }}
      envFrom:
        - configMapRef: {name: {{ $name }}}
      env:
        - {name: HOME, value: /tmp}
        - {name: ISOSIM_HOST, value: {{ .Values.api.bindAddress | quote }}}
        - {name: ISOSIM_PORT, value: "8000"}
        - {name: ISOSIM_DRAIN_DELAY, value: {{ .Values.api.drain.delay | quote }}}
        - {name: ISOSIM_DRAIN_SECONDS, value: {{ .Values.api.drain.seconds | quote }}}
        {{- with .Values.api.engine }}
        - {name: ISOSIM_ENGINE, value: {{ . | quote }}}
        {{- end }}
        {{- if .Values.access.allowAnonymous }}
        - {name: ISOSIM_ALLOW_ANONYMOUS, value: "true"}
        {{- else }}
        - {name: ISOSIM_API_KEYS_FILE, value: /etc/isosim/keys/{{ .Values.access.apiKeysSecret.key }}}
        {{- end }}
        {{- include "isosim.redisEnv" . | nindent 8 }}
        {{- include "isosim.bucketEnv" . | nindent 8 }}
      # The port opens once the model is loaded and warmed up. This takes seconds for the default encoder and minutes for
      # a large one on a cold GPU, and does not depend on the number of domains. The pod fails after five minutes.
      startupProbe:
        httpGet: {path: /livez, port: http}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 150
      # Removes the pod from the Service while it loads or drains. An overloaded server stays ready and answers 429;
      # removing it would overload the others.
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        periodSeconds: 5
        timeoutSeconds: 2
        failureThreshold: 2
      # Fails only if a restart helps: the process hangs, or its encoder's thread is dead. It calls neither Redis nor the
      # volume, because their outage would then restart every pod at once. It fails after a minute, because the event
      # loop may be slow at full load.
      livenessProbe:
        httpGet: {path: /livez, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      resources: {{- toYaml .Values.api.resources | nindent 8 }}
      volumeMounts:
        {{- include "isosim.volumeMounts" . | nindent 8 }}
        {{- if not .Values.access.allowAnonymous }}
        # Mounts the folder and not the file (subPath), so that the pod sees changes of the Secret.
        - {name: keys, mountPath: /etc/isosim/keys, readOnly: true}
        {{- end }}
  volumes:
    {{- include "isosim.volumes" . | nindent 4 }}
    {{- if not .Values.access.allowAnonymous }}
    - name: keys
      secret:
        secretName: {{ .Values.access.apiKeysSecret.name }}
        defaultMode: 0440
        optional: false  # the pod waits until the Secret exists
    {{- end }}
{{- end }}

{{/* What else runs with the API's image, beside it: the job that makes the store, and the one that saves it. The API's pod with
     one container, without its probes and ports, after the operator's init containers, which may fill its volumes. Takes root,
     component, command, memory and, if it has one of its own, serviceAccount. */}}
{{- define "isosim.apiJobPod" -}}
{{- $template := include "isosim.podTemplate" (list .root "api") | fromYaml -}}
{{- $container := first $template.spec.containers -}}
{{- range list "startupProbe" "readinessProbe" "livenessProbe" "ports" "lifecycle" -}}
{{- $_ := unset $container . -}}
{{- end -}}
{{- $memory := .memory -}}
{{- $_ := set $container "name" .component -}}
{{- $_ := set $container "command" .command -}}
{{- $_ := set $container "resources" (dict "requests" (dict "cpu" "50m" "memory" $memory) "limits" (dict "cpu" "1" "memory" $memory)) -}}
{{- $_ := set $template.spec "containers" (list $container) -}}
{{- $before := list -}}
{{- range $template.spec.initContainers -}}
{{- if ne .name "await-encoder" -}}{{- $before = append $before . -}}{{- end -}}
{{- end -}}
{{- range list "topologySpreadConstraints" "initContainers" "terminationGracePeriodSeconds" -}}
{{- $_ := unset $template.spec . -}}
{{- end -}}
{{- with $before -}}{{- $_ := set $template.spec "initContainers" . -}}{{- end -}}
{{- with .serviceAccount -}}{{- $_ := set $template.spec "serviceAccountName" . -}}{{- end -}}
{{- with $template.spec.affinity -}}
{{- $_ := unset . "podAntiAffinity" -}}
{{- end -}}
{{- $_ := set $template.spec "restartPolicy" "OnFailure" -}}
{{- $_ := set $template.metadata.labels "app.kubernetes.io/component" .component -}}
{{- $_ := unset $template.metadata.annotations "checksum/settings" -}}
{{- toYaml $template -}}
{{- end }}

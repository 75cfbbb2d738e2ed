/* One CUDA device for the runtime API: what torch's guards and streams ask for, and no more. */
#include <stddef.h>

#define OK { return 0; }

int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaSetDevice(int device) OK
int cudaInitDevice(int device, unsigned a, unsigned b) OK
int cudaGetLastError(void) OK
int cudaPeekAtLastError(void) OK
int cudaDeviceSynchronize(void) OK
int cudaDeviceGetAttribute(int *value, int name, int device) { *value = 0; return 0; }
int cudaDeviceCanAccessPeer(int *can, int a, int b) { *can = 0; return 0; }
int cudaDriverGetVersion(int *version) { *version = 13020; return 0; }
int cudaThreadExchangeStreamCaptureMode(int *mode) OK

int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -1;
  return 0;
}
int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
  *stream = (void *)0x10;
  return 0;
}
int cudaStreamIsCapturing(void *stream, int *status) { *status = 0; return 0; }
int cudaStreamQuery(void *stream) OK
int cudaStreamSynchronize(void *stream) OK
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) OK

int cudaEventCreateWithFlags(void **event, unsigned flags) { *event = (void *)0x20; return 0; }
int cudaEventCreate(void **event) { *event = (void *)0x20; return 0; }
int cudaEventDestroy(void *event) OK
int cudaEventRecord(void *event, void *stream) OK
int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) OK
int cudaEventQuery(void *event) OK
int cudaEventSynchronize(void *event) OK
int cudaEventElapsedTime(float *milliseconds, void *a, void *b) { *milliseconds = 0; return 0; }

int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                     unsigned long long flags, int *result) {
  *function = NULL;
  if (result) *result = 1; /* not found */
  return 0;
}
